"""Checkpoints of floating-point numbers in 8 and 4 bits, written without a library;
each function returns the plain weights by name.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import quantizing

E4M3 = torch.float8_e4m3fn
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
"""The numbers of codes 0 to 7; codes 8 to 15 are their negatives."""
Held = dict[str, Tensor]


def fp8(folder: Path, size: int = 16, fused: Held | None = None) -> Held:
    """Blocks of `size`, by DeepSeek-V3's names; `fused` replace tensors."""
    held = fused or load_file(folder / "model.safetensors")
    plain = dict(held)
    for name in _projections(held):
        codes, scale, dense = blocks(held.pop(name).float(), size)
        held |= {name: codes, f"{name}_scale_inv": scale}
        plain[name] = dense
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    settings = dict(quant_method="fp8", weight_block_size=[size, size])
    quantizing.configured(folder, quantization_config=settings)
    return plain


def blocks(weight: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales and dequantized weights; the last blocks may be cut off."""
    rows = torch.arange(weight.shape[-2])[:, None] // size
    columns = torch.arange(weight.shape[-1]) // size
    bands = [band.abs().amax(-2) for band in weight.split(size, -2)]
    tall = torch.stack(bands, -2)
    scale = torch.stack([one.amax(-1) for one in tall.split(size, -1)], -1) / 448
    spread = scale[..., rows, columns]
    codes = (weight / spread).to(E4M3)
    return codes, scale, codes.float() * spread


def nvfp4(folder: Path, *, divided: bool = False) -> Held:
    """Two numbers a byte, a scale for 16 inputs; `divided`: by compressed-tensors."""
    held = load_file(folder / "model.safetensors")
    plain = dict(held)
    for name in _projections(held):
        packed, scale, factor, plain[name] = fp4(held.pop(name).float(), divided)
        names = ("", "_scale", "_scale_2")
        if divided:
            names = ("_packed", "_scale", "_global_scale")
        stored = zip(names, (packed, scale, factor), strict=True)
        held |= {name + ending: tensor for ending, tensor in stored}
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    settings = dict(quant_method="modelopt", quant_algo="NVFP4")
    if divided:
        settings = dict(
            quant_method="compressed-tensors", format="nvfp4-pack-quantized"
        )
    quantizing.configured(folder, quantization_config=settings)
    return plain


def fp4(weight: Tensor, divided: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Bytes, scales, the number for all of them, and dequantized weights."""
    groups = weight.unflatten(-1, (-1, 16))
    tops = groups.abs().amax(-1) / 6
    factor = (tops.max() / 448).reshape(1)
    if divided:
        factor = 1 / factor
    scale = (tops * factor if divided else tops / factor).to(E4M3)
    whole = (scale.float() / factor if divided else scale.float() * factor)[..., None]
    table = torch.cat([E2M1, -E2M1])
    apart = (groups[..., None] - whole[..., None] * table).abs()
    codes = apart.argmin(-1)
    halves = codes.flatten(-2).to(torch.uint8).unflatten(-1, (-1, 2))
    packed = halves[..., 0] | halves[..., 1] << 4
    factor = factor if divided else factor.reshape(())
    return packed, scale, factor, (table[codes] * whole).flatten(-2)


def _projections(held: Held) -> Iterator[str]:
    for name, tensor in list(held.items()):
        if "_proj" in name and tensor.dim() > 1:
            yield name
