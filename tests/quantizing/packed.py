"""Checkpoints of GPTQ in any number of bits, written without a library."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import quantizing

GROUP = 32
"""Inputs that share a scale."""


def words(codes: Tensor, bits: int) -> Tensor:
    """Each row as one stream of bits, the lowest first, cut into words of 32."""
    single = codes.int()[..., None] >> torch.arange(bits) & 1
    stream = np.packbits(single.flatten(1).numpy(), axis=1, bitorder="little")
    return torch.from_numpy(stream.view(np.int32))


def gptq(folder: Path, bits: int, *, version: int = 1, order: bool = False) -> dict:
    """Quantize a saved model; `order`: desc_act. Return the plain weights by name."""
    held = load_file(folder / "model.safetensors")
    plain = dict(held)
    for name in [one for one in held if one.endswith("_proj.weight")]:
        parts, plain[name] = matrix(held.pop(name).float(), bits, version, order)
        start = name.removesuffix("weight")
        held |= {start + part: tensor for part, tensor in parts.items()}
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    settings = dict(quant_method="gptq", bits=bits, group_size=GROUP, desc_act=order)
    settings["checkpoint_format"] = "gptq" if version == 1 else "gptq_v2"
    quantizing.configured(folder, quantization_config=settings)
    return plain


def matrix(
    weight: Tensor, bits: int, version: int, order: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """What is stored of a matrix, and its dequantized weights."""
    most = 2**bits - 1
    depth = weight.shape[1]
    index = torch.arange(depth) // GROUP
    if order:
        index = index[torch.randperm(depth, generator=torch.Generator().manual_seed(0))]
    groups = [weight[:, index == group] for group in range(depth // GROUP)]
    low = torch.stack([one.amin(1) for one in groups])
    high = torch.stack([one.amax(1) for one in groups])
    scale = ((high - low) / most).half()
    zero = (-low / scale.float()).round().clamp(0, most)
    spread = scale.float()[index].T
    codes = (weight / spread + zero[index].T).round().clamp(0, most)
    stored = (zero - 1) % 2**bits if version == 1 else zero
    parts = dict(
        qweight=words(codes, bits).T.contiguous(),
        qzeros=words(stored, bits),
        scales=scale,
        g_idx=index.int(),
    )
    return parts, spread * (codes - zero[index].T)
