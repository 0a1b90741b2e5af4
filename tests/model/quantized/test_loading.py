"""Quantized checkpoints become plain models; what cannot be read is refused."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import quantizing
import starter
import tiny_models
from foreword import LLM, SamplingParams
from foreword.errors import ModelError
from foreword.model import Model, Read
from foreword.native import forward
from quantizing import loaded, requantized, saved, weights_of

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
    return requantized(folder, **settings)


def changed(part: str, change: Callable[[Tensor], Tensor]) -> Edit:
    return lambda tensors: tensors.update(
        {LAYER + part: change(tensors[LAYER + part]).contiguous()}
    )


def first(part: str, count: int) -> Edit:
    """Keep so many rows of a part."""
    return changed(part, lambda held: held[:count])


STRANGE = partial(dict.update, strange=torch.ones(2))


def missing(*parts: str) -> Edit:
    return lambda tensors: [tensors.pop(LAYER + part) for part in parts]


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
        ("bitsandbytes-8", missing(".SCB", ".weight_format"), "has no scale"),
        ("bitsandbytes-8", missing(".SCB"), r"\.SCB is missing"),
        ("torchao-int8", missing("._weight_scale"), r"\._weight_scale is missing"),
        ("gptq-4", changed(".scales", lambda held: held[:, :32]), "16 bits a weight"),
        ("awq", changed(".qweight", lambda held: held[:, :4]), r"the shape \[64, 4\]"),
        ("awq", first(".qweight", 48), r"\.weight has the shape \[128, 48\]"),
        ("awq", first(".qweight", 33), "2 groups, which do not divide its 33 inputs"),
        ("compressed-w8a8", first(".weight_scale", 9), r"has the shape \[9, 1\]"),
        (
            "compressed-w4a16-asym",
            changed(".weight_zero_point", lambda held: held[:, :1]),
            r"\.weight_zero_point is for 1 groups, not 2",
        ),
        ("compressed-w8a8", changed(".weight", Tensor.float), "holds float32"),
        ("bitsandbytes-nf4", first(".weight", 99), "holds 198 codes, not 8192"),
        ("torchao-int8", changed("._weight_qdata", Tensor.int), "holds int32, and"),
        (
            "gptq-4-act-order",
            changed(".g_idx", lambda held: held + 1),
            "a group of inputs that is not one of 2",
        ),
        ("gptq-4", changed(".scales", lambda held: held * float("nan")), "holds NaN"),
        ("gptq-4", STRANGE, "it holds strange, which its config has no place for"),
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
    more = changed(".weight_packed", lambda held: held.repeat(1, 2)[:, :12])
    with pytest.raises(ModelError, match="has 6 bits a weight and 128 outputs"):
        loaded(edited("compressed-w4a16", tmp_path / "w6", more))


TRANSFORMED = dict(transform_config={"config_groups": {}})


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("gptq-4", dict(checkpoint_format="marlin"), "checkpoint_format='marlin'"),
        ("awq", dict(version="gemv"), "version='gemv' of its"),
        ("awq", dict(bits=3), "bits=3 of its quantization_config is not supported"),
        ("compressed-w8a8", TRANSFORMED, "transform_config of its quantization_config"),
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

    def biased(bias: Tensor) -> nn.Module:
        edit = partial(dict.update, **{f"{LAYER}.bias": bias})
        return loaded(edited("gptq-4", tmp_path, edit))

    plain = loaded(RECORDED / "gptq-4").state_dict()
    assert tiny_models.differing(biased(torch.zeros(128)).state_dict(), plain) == []
    with pytest.raises(ModelError, match=f"{LAYER}\\.bias, which its config has no"):
        biased(torch.ones(128))


def test_scales_of_other_shapes_are_read(tmp_path):
    def read(change: Callable[[Tensor], Tensor]) -> nn.Module:
        edit = changed(".weight_scale", change)
        return loaded(edited("compressed-w8a8", tmp_path, edit)).get_submodule(LAYER)

    whole = loaded(RECORDED / "compressed-w8a8").get_submodule(LAYER)
    assert torch.equal(read(lambda held: held[:, 0]).weight, whole.weight)
    scale = whole.coded.read().scale.values
    one = read(lambda held: held[0])
    assert torch.equal(one.weight / scale[0], whole.weight / scale)


def test_the_order_of_activations_is_read(tmp_path):
    """Layers with groups that are no runs have no few bits; -1: unused order."""
    plain = loaded(RECORDED / "compressed-w4a16").get_submodule(LAYER)
    order = torch.arange(64).remainder(2).int()
    coded = plain.coded.read()
    codes, scale = coded.codes.float() - 8, coded.scale.values
    for index in (order, torch.full_like(order, -1), torch.arange(64).int() // 32):
        edit = partial(dict.update, **{f"{LAYER}.weight_g_idx": index})
        found = loaded(edited("compressed-w4a16", tmp_path, edit)).get_submodule(LAYER)
        mixed = codes * scale[:, order.long()]
        assert torch.equal(found.weight, mixed if index is order else plain.weight)
        assert hasattr(found, "coded") == (index is not order)


@pytest.mark.parametrize(
    "name", ["llama", "llama-gqa", "phi3", "qwen3-moe", "mistral3"]
)
def test_matrices_are_found_in_any_file_and_under_any_name(tmp_path, name):
    """Experts become one tensor without few bits; mistral3 renames tensors."""
    plain = quantizing.int8(saved(name, tmp_path))
    quantizing.shard(tmp_path, 3)
    model = loaded(tmp_path)
    layers = [layer for layer in model.modules() if hasattr(layer, "coded")]
    matrices = [part for part in plain if part.endswith("_proj.weight")]
    assert len(layers) == sum(".experts." not in part for part in matrices)
    for layer in layers:
        assert torch.equal(layer.coded.read().dense(), layer.weight)
    whole = weights_of(tmp_path / "plain", plain, name)
    assert tiny_models.differing(model.state_dict(), whole.state_dict()) == []


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("draft")
    shutil.copytree(starter.draft(), folder, dirs_exist_ok=True)
    quantizing.int8(folder)
    return folder


@pytest.mark.parametrize("backend", ["native", "pool", "cache", "plain"])
def test_every_backend_scores_with_the_dequantized_weights(quantized, backend):
    if backend == "native" and forward.reason() is not None:
        pytest.skip(f"no native kernel here: {forward.reason()}")
    dtype = torch.bfloat16 if backend == "native" else torch.float32
    model = Model.load(quantized, dtype=dtype, device="cpu", backend=backend)
    model.open(1, 40)
    tokens = list(range(5, 25))
    reads = [Read(1, at, [token], keep=1) for at, token in enumerate(tokens)]
    found = torch.cat([model.read([read]) for read in reads])
    with torch.inference_mode():
        scores = loaded(quantized, dtype).float()(torch.tensor([tokens])).logits[0]
    whole = scores.log_softmax(-1)
    # there rows are rounded to 8 bits, in groups of 128 at most
    most = 0.01 if backend == "native" else 0.001
    difference = whole - found.float().log_softmax(-1)
    assert (whole.exp() * difference).sum(-1).max() < most


def test_drafted_text_is_the_text_of_the_quantized_target(quantized):
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=30, ignore_eos=True)
    texts = []
    for method in ("none", "suffix"):
        llm = LLM(quantized, method=method, device="cpu", tokenizer=False)
        texts.append(llm.generate([list(range(5, 15)) * 3], params)[0].tokens)
    assert texts[0] == texts[1]
