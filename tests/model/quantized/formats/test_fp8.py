"""FP8 numbers with scales of blocks are read as transformers and as defined."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, FineGrainedFP8Config

import quantizing.floats
import tiny_models
import tiny_vision
from foreword.errors import ModelError
from foreword.model.loading.config import read_config
from foreword.model.quantized.coded import Coded
from foreword.model.quantized.layer import Layer
from foreword.registry import WEIGHT_FORMATS
from quantizing import loaded, requantized, saved, weights_of

NAME = "model.layers.0.mlp.up_proj.weight"


def read(settings: dict[str, object], **tensors: Tensor) -> Tensor:
    held = {"" if name == "codes" else name: one for name, one in tensors.items()}
    found = WEIGHT_FORMATS["fp8"].read(Layer("here", NAME, held, settings))
    assert isinstance(found, Coded)
    return found.dense()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["llama-gqa", "qwen3-moe"])
def test_weights_are_those_of_transformers(tmp_path, name):
    quantizing.floats.fp8(saved(name, tmp_path))
    how = FineGrainedFP8Config(weight_block_size=(16, 16), dequantize=True)
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.bfloat16, quantization_config=how
    )
    ours = loaded(tmp_path, torch.bfloat16)
    assert tiny_models.differing(theirs.state_dict(), ours.state_dict()) == []
    plain = tiny_models.build(name).to(torch.bfloat16).state_dict()
    assert len(tiny_models.differing(plain, ours.state_dict())) >= 5
    tokens = torch.arange(20)[None]
    with torch.inference_mode():
        assert torch.equal(ours(tokens).logits, theirs(tokens).logits)


@pytest.mark.parametrize("fused", [False, True], ids=["apart", "fused"])
@pytest.mark.parametrize(
    ("name", "size"), [("qwen3-moe", 16), ("qwen3-moe", 24), ("deepseek-v3", 16)]
)
def test_experts_are_read_apart_and_as_one_tensor(tmp_path, name, size, fused):
    """Blocks of 24 (deepseek-v3: 16) divide no side: the last one is cut off."""
    folder = saved(name, tmp_path / "fp8")
    held = tiny_models.build(name).to(torch.bfloat16).state_dict()
    whole = {part: one.clone() for part, one in held.items()} if fused else None
    plain = quantizing.floats.fp8(folder, size, whole)
    names = load_file(folder / "model.safetensors")
    together = [part for part in names if part.endswith("gate_up_proj_scale_inv")]
    assert bool(together) == fused
    expected = weights_of(tmp_path / "plain", plain, name)
    found = loaded(folder)
    assert tiny_models.differing(found.state_dict(), expected.state_dict()) == []


def drawn(*shape: int) -> torch.Tensor:
    """Return scales between 1 and 2, the same in every process."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 1


@pytest.mark.parametrize(
    ("size", "scale"),
    [
        (None, torch.tensor(0.25)),
        (None, torch.tensor([0.25])),
        (None, drawn(40, 1)),
        (None, drawn(40)),
        (None, drawn(2, 3)),
        ([32, 32], drawn(2, 2)),
        ([32, 32], drawn(2, 2).bfloat16()),
        ([32, 32], torch.tensor([[120, 127], [128, 140]], dtype=torch.uint8)),
        ([32, 32], torch.tensor(2.0)),
        ([1, 16], drawn(40, 3)),
    ],
    ids=lambda one: str(getattr(one, "shape", one)) + str(getattr(one, "dtype", "")),
)
def test_scales_of_every_shape(size, scale):
    codes = torch.randn(40, 48).to(torch.float8_e4m3fn)
    found = read(dict(weight_block_size=size), codes=codes, _scale_inv=scale)
    number = scale.float()
    if scale.dtype == torch.uint8:
        number = 2.0 ** (scale.float() - 127)
    grid = number.reshape(-1, 1) if number.dim() < 2 else number
    high, wide = size or (40 // grid.shape[0], 48 // grid.shape[1])
    if number.numel() == 1:
        high, wide = 40, 48
    rows, columns = torch.arange(40)[:, None] // high, torch.arange(48) // wide
    assert torch.equal(found, codes.float() * grid[rows, columns])


def test_older_names_and_scales_of_activations(tmp_path):
    """AutoFP8 calls the scale weight_scale; activations and keys have scales too."""
    folder = saved("llama-gqa", tmp_path)
    quantizing.floats.fp8(folder)
    expected = loaded(folder).state_dict()
    held = load_file(folder / "model.safetensors")
    for name in [name for name in held if name.endswith("_scale_inv")]:
        held[name.removesuffix("_inv")] = held.pop(name)
        start = name.removesuffix("weight_scale_inv")
        for ending in ("input_scale", "activation_scale", "k_scale"):
            held[start + ending] = torch.tensor(0.5)
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    assert tiny_models.differing(loaded(folder).state_dict(), expected) == []


def test_settings_of_the_text_config(tmp_path):
    """A model of images and text may name them there alone."""
    tiny_vision.build("llava").to(torch.bfloat16).save_pretrained(tmp_path)
    quantizing.floats.fp8(tmp_path)
    expected = loaded(tmp_path).state_dict()
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    settings = config.pop("quantization_config")
    config["text_config"]["quantization_config"] = settings
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert not hasattr(read_config(tmp_path), "quantization_config")
    assert tiny_models.differing(loaded(tmp_path).state_dict(), expected) == []


@pytest.mark.parametrize(
    ("settings", "scale", "said"),
    [
        (dict(weight_block_size=[32, 32]), torch.ones(3, 2), r"\(32 x 32\) of \[40"),
        (dict(weight_block_size=None), torch.ones(0, 1), r"\(any size\) of \[40, 48\]"),
        (dict(weight_block_size=None), torch.ones(7, 1), r"\(any size\) of \[40, 48\]"),
        (
            {},
            torch.ones(2, 2),
            r"\[2, 2\], which is not that of the blocks \(128 x 128",
        ),
    ],
)
def test_scales_that_do_not_fit_are_named(settings, scale, said):
    codes = torch.ones(40, 48).to(torch.float8_e4m3fn)
    with pytest.raises(ModelError, match=rf"{NAME}_scale_inv has the shape .*{said}"):
        read(settings, codes=codes, _scale_inv=scale)


def test_other_numbers_are_refused(tmp_path):
    codes = torch.ones(40, 48).to(torch.float8_e5m2)
    with pytest.raises(ModelError, match="holds float8_e5m2, and only float8_e4m3fn"):
        read({}, codes=codes, _scale_inv=torch.ones(1))
    folder = saved("llama-gqa", tmp_path)
    quantizing.floats.fp8(folder)
    held = load_file(folder / "model.safetensors")
    held[NAME].view(torch.uint8)[3, 5] = 0x7F
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=rf"{NAME} holds NaN"):
        loaded(folder)
    del held[f"{NAME}_scale_inv"]
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=rf"{NAME} holds float8_e4m3fn and has no sc"):
        loaded(folder)
    with pytest.raises(ModelError, match=r"weight_block_size=\[16\] of its quant"):
        loaded(requantized(folder, weight_block_size=[16]))
