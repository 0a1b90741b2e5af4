"""Written checkpoints in few bits: read back as quantized, the nearest codes."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

import starter
from foreword import LLM
from foreword.errors import ModelError
from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights
from foreword.model.quantized.layer import unpack
from foreword.model.quantized.write import packed, quantized, write
from foreword.native import forward
from running import check_drafts
from tiny_sizes import sizes


@pytest.fixture(scope="module", params=["int4", "int8"])
def written(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("written") / "model"
    return write(starter.draft(), folder, request.param), request.param


def test_what_is_read_back_is_what_was_written(written):
    done, form = written
    bits = {"int4": 4, "int8": 8}[form]
    read = load_weights(done.folder, read_config(done.folder), torch.bfloat16)
    whole = load_weights(starter.draft(), read_config(starter.draft()), torch.bfloat16)
    layers = {
        name: part for name, part in read.named_modules() if hasattr(part, "coded")
    }
    assert len(layers) == done.matrices == 14
    for name, part in layers.items():
        weight = whole.get_submodule(name).weight.float()
        codes, scales = quantized(weight, bits, 64 if bits == 4 else weight.shape[1])
        dense = (
            codes.unflatten(1, (scales.shape[1], -1)) * scales.float()[..., None]
        ).flatten(1)
        assert torch.equal(part.coded.read().dense(), dense)
        assert torch.equal(part.weight, dense.bfloat16())
    others = {
        name: tensor
        for name, tensor in read.state_dict().items()
        if name.removesuffix(".weight") not in layers
    }
    assert all(
        torch.equal(whole.state_dict()[name], tensor) for name, tensor in others.items()
    )
    saved = sum(part.weight.numel() for part in layers.values()) * (2 - bits / 8)
    assert 0.9 * saved < done.before - done.after < saved  # scales, and embeddings stay


def test_words_are_those_of_the_form_on_disk(written):
    done, form = written
    bits = {"int4": 4, "int8": 8}[form]
    settings = json.loads((done.folder / "config.json").read_text())[
        "quantization_config"
    ]
    assert settings["config_groups"]["group_0"]["weights"]["num_bits"] == bits
    assert settings["ignore"] == ["lm_head"]
    tensors = load_file(done.folder / "model.safetensors")
    name = "model.layers.0.mlp.down_proj"
    assert tensors[f"{name}.weight_packed"].dtype == torch.int32
    outputs, depth = tensors[f"{name}.weight_shape"].tolist()
    assert tensors[f"{name}.weight_packed"].shape == (outputs, depth * bits // 32)


def test_codes_are_the_nearest_of_the_scales_tried():
    weight = torch.randn(16, 128, generator=torch.Generator().manual_seed(0))
    codes, scales = quantized(weight, 4, 64)
    again = (codes.unflatten(1, (2, -1)) * scales.float()[..., None]).flatten(1)
    plain = weight.unflatten(1, (2, -1))
    scale = (plain.abs().amax(-1, keepdim=True) / 7).bfloat16().float()
    uncut = ((plain / scale).round().clamp(-8, 7) * scale).flatten(1)
    assert (again - weight).square().sum() < (uncut - weight).square().sum()
    assert (again - weight).square().mean().sqrt() < 0.12
    assert torch.equal(unpack(packed(codes, 4), 4).to(torch.int8) - 8, codes)
    assert bool((quantized(torch.zeros(2, 64), 4, 64)[0] == 0).all())


@pytest.mark.skipif(forward.reason() is not None, reason="no native kernel")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_leave_the_text_unchanged(written, temperature):
    llm = LLM(str(written[0].folder))
    assert llm.target.weights is not None
    check_drafts(llm, "suffix", temperature, seed=3, tokens=40)


def test_a_model_whose_sizes_do_not_fit_is_refused(tmp_path):
    folder = tmp_path / "odd"
    config = LlamaConfig(**sizes(48, 80, 3, layers=1), vocab_size=64)
    LlamaForCausalLM(config).save_pretrained(folder)
    with pytest.raises(ModelError, match=r"no nn\.Linear layer with a multiple of"):
        write(folder, tmp_path / "out", "int4")
    assert not (tmp_path / "out").exists()
