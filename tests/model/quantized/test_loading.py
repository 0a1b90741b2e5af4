"""Quantized checkpoints become plain models on every backend; what cannot be read is
refused by its name.
"""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

import quantizing
import starter
import tiny_models
from foreword import LLM, SamplingParams
from foreword.errors import ModelError
from foreword.model import Model, Read
from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights
from foreword.native import forward

RECORDED = Path(__file__).parent / "recorded"
LAYER = "model.layers.0.mlp.up_proj"
Edit = Callable[[dict[str, Tensor]], object]


def edited(
    name: str, folder: Path, edit: Edit = lambda tensors: None, **settings: object
) -> Path:
    """A recorded checkpoint with other tensors, or another quantization_config."""
    shutil.copytree(RECORDED / name, folder, dirs_exist_ok=True)
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return quantizing.configured(
        folder, quantization_config=config["quantization_config"] | settings
    )


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> nn.Module:
    return load_weights(folder, read_config(folder), dtype).eval()


def changed(part: str, change: Callable[[Tensor], Tensor]) -> Edit:
    return lambda tensors: tensors.update(
        {LAYER + part: change(tensors[LAYER + part]).contiguous()}
    )


def missing(part: str) -> Edit:
    return lambda tensors: tensors.pop(LAYER + part)


@pytest.mark.parametrize(
    ("name", "edit", "said"),
    [
        ("gptq-4", missing(".scales"), r"\.scales is missing"),
        ("gptq-4", missing(".qweight"), r"\.qweight is missing"),
        ("awq", missing(".qzeros"), r"\.qzeros is missing"),
        ("compressed-w4a16", missing(".weight_scale"), r"\.weight_scale is missing"),
        ("compressed-w4a16", missing(".weight_packed"), r"\.weight_packed is missing"),
        ("compressed-w8a8", missing(".weight_scale"), "holds int8 and has no scale"),
        ("bitsandbytes-nf4", missing(".weight.absmax"), r"\.weight\.absmax is missing"),
        ("bitsandbytes-nf4", missing(".weight.nested_absmax"), "absmax is missing"),
        (
            "bitsandbytes-8",
            lambda tensors: [
                missing(part)(tensors) for part in (".SCB", ".weight_format")
            ],
            "no scale",
        ),
        ("bitsandbytes-8", missing(".SCB"), r"\.SCB is missing"),
        ("torchao-int8", missing("._weight_scale"), r"\._weight_scale is missing"),
        ("gptq-4", changed(".scales", lambda held: held[:, :32]), "16 bits a weight"),
        ("awq", changed(".qweight", lambda held: held[:, :4]), r"the shape \[64, 4\]"),
        ("awq", changed(".qweight", lambda held: held[:48]), r"shape \[128, 48\]"),
        ("awq", changed(".qweight", lambda held: held[:33]), "not divide its 33"),
        (
            "compressed-w8a8",
            changed(".weight_scale", lambda held: held[:9]),
            r"\.weight_scale has the shape \[9, 1\]",
        ),
        (
            "compressed-w4a16-asym",
            changed(".weight_zero_point", lambda held: held[:, :1]),
            r"\.weight_zero_point is for 1 groups, not 2",
        ),
        ("compressed-w8a8", changed(".weight", lambda held: held.float()), "float32"),
        (
            "bitsandbytes-nf4",
            changed(".weight", lambda held: held[:99]),
            r"\.weight holds 198 codes, not 8192",
        ),
        (
            "torchao-int8",
            changed("._weight_qdata", lambda held: held.int()),
            "holds int32, and only int8 is read",
        ),
        (
            "gptq-4-act-order",
            changed(".g_idx", lambda held: held + 1),
            "a group of inputs that is not one of 2",
        ),
        ("gptq-4", changed(".scales", lambda held: held * float("nan")), "holds NaN"),
        (
            "gptq-4",
            lambda tensors: tensors.update(strange=torch.ones(2)),
            "it holds strange, which its config has no",
        ),
        ("gptq-4", lambda tensors: tensors.pop("model.norm.weight"), r"lacks model\."),
    ],
)
def test_a_tensor_that_cannot_be_read_is_named(tmp_path, name, edit, said):
    folder = edited(name, tmp_path, edit)
    with pytest.raises(ModelError, match=f"^cannot (load|use) the weights of .*{said}"):
        loaded(folder)


def test_other_bits_are_refused(tmp_path):
    def six(tensors: dict[str, Tensor]) -> None:
        tensors[f"{LAYER}.qzeros"] = torch.zeros(2, 24, dtype=torch.int32)

    with pytest.raises(ModelError, match=f"{LAYER}\\.qweight has 6 bits a weight"):
        loaded(edited("gptq-4", tmp_path / "gptq", six))
    with pytest.raises(ModelError, match="has 6 bits a weight and 128 outputs"):
        loaded(
            edited(
                "compressed-w4a16",
                tmp_path / "w6",
                changed(".weight_packed", lambda held: held.repeat(1, 2)[:, :12]),
            )
        )


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("gptq-4", dict(checkpoint_format="marlin"), "checkpoint_format='marlin'"),
        ("awq", dict(version="gemv"), "version='gemv' of its"),
        ("awq", dict(bits=3), "bits=3 of its quantization_config is not supported"),
        (
            "compressed-w8a8",
            dict(transform_config={"config_groups": {}}),
            "transform_config of its quantization_config",
        ),
        ("gptq-4", dict(quant_method="sixbits"), "quant_method='sixbits'"),
    ],
)
def test_settings_that_cannot_be_read_are_named(tmp_path, name, settings, said):
    with pytest.raises(ModelError, match=f"^cannot load .*: .*{said}"):
        loaded(edited(name, tmp_path, **settings))


def test_pickled_weights_are_refused(tmp_path):
    folder = edited("gptq-4", tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors, which does not exist"):
        loaded(folder)


def test_zero_biases_that_the_model_lacks_do_not_matter(tmp_path):
    """Old releases of AutoGPTQ gave a bias to every quantized layer."""
    biased = edited(
        "gptq-4",
        tmp_path / "zero",
        lambda tensors: tensors.update({f"{LAYER}.bias": torch.zeros(128)}),
    )
    assert (
        tiny_models.differing(
            loaded(biased).state_dict(), loaded(RECORDED / "gptq-4").state_dict()
        )
        == []
    )
    biased = edited(
        "gptq-4",
        tmp_path / "one",
        lambda tensors: tensors.update({f"{LAYER}.bias": torch.ones(128)}),
    )
    with pytest.raises(ModelError, match=f"{LAYER}\\.bias, which its config has no"):
        loaded(biased)


def test_scales_of_other_shapes_are_read(tmp_path):
    one = edited(
        "compressed-w8a8",
        tmp_path / "one",
        changed(".weight_scale", lambda held: held[0]),
    )
    flat = edited(
        "compressed-w8a8",
        tmp_path / "flat",
        changed(".weight_scale", lambda held: held[:, 0]),
    )
    whole = loaded(RECORDED / "compressed-w8a8").get_submodule(LAYER)
    assert torch.equal(loaded(flat).get_submodule(LAYER).weight, whole.weight)
    found = loaded(one).get_submodule(LAYER)
    scale = whole.coded.read().scale.values
    assert torch.equal(found.weight / scale[0], whole.weight / scale)


def test_the_order_of_activations_is_read(tmp_path):
    """With groups of inputs that are no runs a layer has no few bits; -1 means that the
    order is not used.
    """
    plain, order = (
        loaded(RECORDED / "compressed-w4a16").get_submodule(LAYER),
        torch.arange(64).remainder(2).int(),
    )
    coded = plain.coded.read()
    codes, scale = coded.codes.float() - 8, coded.scale.values
    for index in (
        order,
        torch.full_like(order, -1),
        torch.arange(64).div(32, rounding_mode="floor").int(),
    ):
        edit = partial(dict.update, **{f"{LAYER}.weight_g_idx": index})
        found = loaded(edited("compressed-w4a16", tmp_path, edit)).get_submodule(LAYER)
        assert torch.equal(
            found.weight,
            codes * scale[:, order.long()] if index is order else plain.weight,
        )
        assert hasattr(found, "coded") == (index is not order)


def build(name: str) -> PreTrainedModel:
    """A tiny model; mistral3 reads images too."""
    if name != "mistral3":
        return tiny_models.build(name)
    return tiny_models.mistral3()


@pytest.mark.parametrize(
    "name", ["llama", "llama-gqa", "phi3", "qwen3-moe", "mistral3"]
)
def test_matrices_are_found_in_any_file_and_under_any_name(tmp_path, name):
    """Experts become one tensor, without few bits of their own; the names of mistral3
    differ from those in its file.
    """
    build(name).to(torch.bfloat16).save_pretrained(tmp_path)
    plain = quantizing.int8(tmp_path)
    quantizing.shard(tmp_path, 3)
    model = loaded(tmp_path)
    layers = {
        part: layer for part, layer in model.named_modules() if hasattr(layer, "coded")
    }
    assert len(layers) == sum(
        part.endswith("_proj.weight") and ".experts." not in part for part in plain
    )
    assert all(
        torch.equal(layer.coded.read().dense(), layer.weight)
        for layer in layers.values()
    )
    whole = tmp_path / "plain"
    build(name).save_pretrained(whole)
    save_file(
        {part: tensor.float().contiguous() for part, tensor in plain.items()},
        whole / "model.safetensors",
    )
    assert tiny_models.differing(model.state_dict(), loaded(whole).state_dict()) == []


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(
        shutil.copytree(
            starter.draft(), tmp_path_factory.mktemp("draft"), dirs_exist_ok=True
        )
    )
    quantizing.int8(folder)
    return folder


@pytest.mark.parametrize("backend", ["native", "pool", "cache", "plain"])
def test_every_backend_scores_with_the_dequantized_weights(quantized, backend):
    if backend == "native" and forward.reason() is not None:
        pytest.skip(f"no native kernel here: {forward.reason()}")
    dtype = torch.bfloat16 if backend == "native" else torch.float32
    model, tokens = (
        Model.load(quantized, dtype=dtype, device="cpu", backend=backend),
        list(range(5, 25)),
    )
    model.open(1, 40)
    found = [
        model.read([Read(1, at, [token], keep=1)]) for at, token in enumerate(tokens)
    ]
    with torch.inference_mode():
        scores = loaded(quantized, dtype).float()(torch.tensor([tokens])).logits[0]
    whole = scores.log_softmax(-1)
    # there rows are rounded to 8 bits, in groups of 128 at most
    most = 0.01 if backend == "native" else 0.001
    assert (whole.exp() * (whole - torch.cat(found).float().log_softmax(-1))).sum(
        -1
    ).max() < most


def test_drafted_text_is_the_text_of_the_quantized_target(quantized):
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=30, ignore_eos=True)
    texts = []
    for method in ("none", "suffix"):
        llm = LLM(quantized, method=method, device="cpu", tokenizer=False)
        texts.append(llm.generate([list(range(5, 15)) * 3], params)[0].tokens)
    assert texts[0] == texts[1]
