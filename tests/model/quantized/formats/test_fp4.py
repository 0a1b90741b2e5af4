"""FP4 numbers with scales of 16 inputs are read exactly, and keep their bits."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import quantizing.floats
import tiny_models
from foreword.errors import ModelError
from foreword.model.quantized.coded import Coded
from foreword.model.quantized.layer import Layer
from foreword.registry import WEIGHT_FORMATS
from quantizing import loaded, saved, weights_of

NAME = "model.layers.0.mlp.up_proj"
NUMBERS = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6]
E4M3 = torch.float8_e4m3fn
BYTES = torch.arange(256, dtype=torch.uint8).repeat(2).view(4, 128)
"""Every pair of numbers, in 4 outputs of 256 inputs."""
SCALES = (torch.rand(4, 16) * 448).to(E4M3)


def read(method: str, settings: object = None, **tensors: Tensor) -> Coded | Tensor:
    held = {f".{name}": one for name, one in tensors.items()}
    layer = Layer("here", NAME, held, settings or {})
    return WEIGHT_FORMATS[method].read(layer)


def defined(scale: Tensor, group: int) -> Tensor:
    """Each number by its own place: the low half of a byte comes first."""
    rows = [
        [NUMBERS[half] for byte in row.tolist() for half in (byte & 15, byte >> 4)]
        for row in BYTES
    ]
    return torch.tensor(rows) * scale.repeat_interleave(group, dim=1)


def test_one_format_divides_by_its_number_and_one_multiplies():
    seven = torch.tensor([7.0])
    divided = read(
        "compressed-tensors",
        weight_packed=BYTES,
        weight_scale=SCALES,
        weight_global_scale=seven,
    )
    assert torch.equal(divided.dense(), defined(SCALES.float() / seven, 16))
    factor = torch.tensor(0.013)
    multiplied = read(
        "modelopt", weight=BYTES, weight_scale=SCALES, weight_scale_2=factor
    )
    assert torch.equal(multiplied.dense(), defined(SCALES.float() * factor, 16))
    assert [len(one.levels) for one in (divided, multiplied)] == [16, 16]
    assert [one.group for one in (divided, multiplied)] == [16, 16]


def test_powers_of_two_for_32_inputs():
    powers = torch.arange(100, 132, dtype=torch.uint8).view(4, 8)
    found = read("compressed-tensors", weight_packed=BYTES, weight_scale=powers)
    assert torch.equal(found.dense(), defined(2.0 ** (powers.float() - 127), 32))
    assert found.group == 32


@pytest.mark.parametrize("divided", [False, True], ids=["modelopt", "compressed"])
@pytest.mark.parametrize("name", ["llama-gqa", "qwen3-moe"])
def test_every_matrix_but_experts_keeps_its_bits(tmp_path, name, divided):
    folder = saved(name, tmp_path / "fp4")
    plain = quantizing.floats.nvfp4(folder, divided=divided)
    expected = weights_of(tmp_path / "plain", plain, name)
    found = loaded(folder)
    assert tiny_models.differing(found.state_dict(), expected.state_dict()) == []
    layers = [part for part in found.modules() if hasattr(part, "coded")]
    names = [part for part in plain if part.endswith("_proj.weight")]
    assert len(layers) == sum(".experts." not in part for part in names) > 0
    assert all(
        torch.equal(layer.coded.read().dense(), layer.weight) for layer in layers
    )


def test_settings_in_a_file_of_their_own(tmp_path):
    folder = saved("llama-gqa", tmp_path)
    quantizing.floats.nvfp4(folder)
    expected = loaded(folder).state_dict()
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    del config["quantization_config"]
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match="has the shape"):
        loaded(folder)
    found = dict(quantization=dict(quant_algo="NVFP4", exclude_modules=["lm_head"]))
    file = folder / "hf_quant_config.json"
    file.write_text(json.dumps(found), encoding="utf-8")
    assert tiny_models.differing(loaded(folder).state_dict(), expected) == []
    found["quantization"]["quant_algo"] = "W4A16_AWQ"
    file.write_text(json.dumps(found), encoding="utf-8")
    with pytest.raises(ModelError, match="quant_algo='W4A16_AWQ' of its quant"):
        loaded(folder)


@pytest.mark.parametrize(
    ("method", "tensors", "said"),
    [
        ("modelopt", dict(pre_quant_scale=SCALES), r"\.pre_quant_scale scales activa"),
        ("modelopt", dict(weight=BYTES.int()), r"\.weight holds int32, and only uint8"),
        ("modelopt", dict(weight_scale_2=None), r"\.weight_scale_2 is missing"),
        ("modelopt", dict(weight_scale_2=torch.ones(4)), r"\[4\], not one number"),
        ("modelopt", dict(weight_scale=SCALES.float()), "float32, and only float8_e4"),
        ("modelopt", dict(weight_scale=SCALES[:3]), r"\[4, 128\], not \[3, any\]"),
        ("modelopt", dict(weight_scale=SCALES[:, :9]), "256 inputs, and its 9 groups"),
        ("compressed-tensors", dict(weight_scale=None), r"\.weight_scale is missing"),
        (
            "compressed-tensors",
            dict(weight_global_scale=None),
            "holds float8_e4m3fn, and only uint8 is read",
        ),
    ],
)
def test_what_cannot_be_read_is_named(method, tensors, said):
    names = ("weight", "weight_scale", "weight_scale_2")
    if method == "compressed-tensors":
        names = ("weight_packed", "weight_scale", "weight_global_scale")
    usual = dict(zip(names, (BYTES, SCALES, torch.ones(1)), strict=True))
    given = {name: one for name, one in (usual | tensors).items() if one is not None}
    with pytest.raises(ModelError, match=rf"cannot load .* {NAME}.*{said}"):
        read(method, **given)


@pytest.mark.parametrize("form", ["tensor", "output", "group"])
def test_fp8_beside_it(form):
    """FP8 numbers with one scale or one an output; MXFP8: powers of two for 32."""
    codes = torch.randn(40, 64).to(E4M3)
    scale = {
        "tensor": torch.tensor(0.3),
        "output": torch.rand(40, 1),
        "group": torch.arange(80, dtype=torch.uint8).view(40, 2) + 100,
    }[form]
    whole = 2.0 ** (scale.float() - 127) if form == "group" else scale
    wide = whole.repeat_interleave(32, 1) if form == "group" else whole
    for method in ("modelopt", "compressed-tensors"):
        found = read(method, weight=codes, weight_scale=scale).dense()
        assert torch.equal(found, codes.float() * wide)


def test_fp8_in_the_sizes_that_any_scheme_names():
    schemes = [
        dict(weights=dict(block_structure=[16, 24])),
        dict(weights=dict(group_size=32, strategy="group")),
        dict(weights=None),
    ]
    settings = dict(config_groups=dict(enumerate(schemes)))
    codes = torch.randn(40, 64).to(E4M3)
    for scale, high, wide in (
        (torch.rand(3, 3), 16, 24),
        (torch.rand(40, 2), 1, 32),
        (torch.rand(40, 1), 1, 64),
    ):
        given = dict(weight=codes, weight_scale=scale)
        found = read("compressed-tensors", settings, **given)
        found = found.dense() if isinstance(found, Coded) else found
        rows = torch.arange(40)[:, None] // high
        columns = torch.arange(64) // wide
        assert torch.equal(found, codes.float() * scale[rows, columns])
    with pytest.raises(ModelError, match=r"blocks \(16 x 24 or 1 x 32\) of \[40, 64"):
        read(
            "compressed-tensors", settings, weight=codes, weight_scale=torch.ones(2, 2)
        )


def test_fp8_with_zero_points_is_refused():
    codes = torch.randn(40, 64).to(E4M3)
    given = dict(weight=codes, weight_scale=torch.ones(40, 1))
    zero = torch.zeros(40, 1).to(E4M3)
    found = read("compressed-tensors", **given, weight_zero_point=zero)
    assert torch.equal(found.dense(), codes.float())
    with pytest.raises(ModelError, match=r"weight_zero_point is not zero beside FP8"):
        read("compressed-tensors", **given, weight_zero_point=torch.ones(40, 1))


def test_scales_of_keys_and_values_are_left_out(tmp_path):
    folder = saved("llama-gqa", tmp_path)
    quantizing.floats.nvfp4(folder, divided=True)
    expected = loaded(folder).state_dict()
    held = load_file(folder / "model.safetensors")
    for ending in ("k_scale", "v_scale"):
        held[f"model.layers.0.self_attn.{ending}"] = torch.tensor(0.5)
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    assert tiny_models.differing(loaded(folder).state_dict(), expected) == []
