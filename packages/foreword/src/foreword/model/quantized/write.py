"""Writes quantized checkpoints of compressed-tensors: packed 4- or 8-bit integers."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.files import atomic_folder
from foreword.model.architectures import lm_head
from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights
from foreword.model.tokenizer import load_tokenizer

BITS = {"int4": 4, "int8": 8}
"""Form -> bits of a code."""
GROUP = 64
"""Inputs that share a scale in 4 bits; in 8 bits all inputs of an output do."""
CLIPS, CLIP = 6, 1 / 24
"""Scales tried for each group, and the step by which each clips more."""
WORD = 32
"""Bits of an integer that codes are packed into."""


@dataclass(frozen=True, slots=True)
class Written:
    """A written checkpoint."""

    folder: Path
    matrices: int
    before: int
    after: int
    """Bytes of all tensors, in bfloat16 and as written."""


def write(
    source: str | Path,
    out: Path,
    form: str,
    *,
    trust_remote_code: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> Written:
    """Quantize the linear layers of a checkpoint, except the LM head, and write it to a
    new folder with its tokenizer.

    A code is the nearest to its weight, under the scale of a group, of CLIPS tried,
    whose squared errors are least. `note` gets a line before slow steps. Raises
    ModelError where no layer can be quantized.
    """
    bits = BITS[form]
    note(f"loading {source}")
    config = read_config(source, trust_remote_code=trust_remote_code, seq2seq=True)
    hf = load_weights(
        source, config, torch.bfloat16, trust_remote_code=trust_remote_code
    )
    tensors, size = dict(hf.state_dict()), GROUP if bits == BITS["int4"] else 0
    before = _bytes(tensors)
    names = [name for name, part in _linears(hf) if part.in_features % (size or 8) == 0]
    if not names:
        raise ModelError(
            f"cannot quantize {source}: it has no nn.Linear layer with a multiple of "
            f"{size or 8} inputs. Use LLM(weights={form!r}), or another model"
        )
    note(f"quantizing {len(names)} matrices")
    for name in names:
        weight = tensors.pop(f"{name}.weight").float()
        codes, scales = quantized(weight, bits, size or weight.shape[1])
        tensors[f"{name}.weight_packed"] = packed(codes, bits)
        tensors[f"{name}.weight_scale"] = scales
        tensors[f"{name}.weight_shape"] = torch.tensor(weight.shape)
    ignored = [
        name
        for name, part in hf.named_modules()
        if isinstance(part, nn.Linear) and name not in set(names)
    ]
    with atomic_folder(out) as folder:
        _describe(hf, folder, bits, size, ignored)
        load_tokenizer(source, trust_remote_code=trust_remote_code).save_pretrained(
            folder
        )
        save_torch_state_dict(tensors, folder, metadata={"format": "pt"})
    return Written(out, len(names), before, _bytes(tensors))


def quantized(
    weight: Float[Tensor, "outputs depth"], bits: int, size: int
) -> tuple[Int8[Tensor, "outputs depth"], Float[Tensor, "outputs groups"]]:
    """Return the codes of a matrix, and their scales in bfloat16, one for each output
    and group of `size` inputs.
    """
    groups, most = weight.unflatten(1, (-1, size)), 2 ** (bits - 1) - 1
    top = groups.abs().amax(-1, keepdim=True).clamp(min=1e-20)
    least = torch.full_like(top, torch.inf)
    codes, scales = torch.zeros_like(groups), torch.zeros_like(top)
    for clip in range(CLIPS if bits < BITS["int8"] else 1):
        scale = (top * (1 - clip * CLIP) / most).bfloat16().float()
        tried = (groups / scale).round().clamp(-most - 1, most)
        error = (tried * scale - groups).square().sum(-1, keepdim=True)
        better = error < least
        codes = torch.where(better, tried, codes)
        scales = torch.where(better, scale, scales)
        least = torch.where(better, error, least)
    return codes.flatten(1).to(torch.int8), scales.squeeze(-1).bfloat16()


def packed(
    codes: Int8[Tensor, "outputs depth"], bits: int
) -> Int[Tensor, "outputs words"]:
    """Return codes, raised to be positive, in 32-bit words; the first code of a word is
    in its lowest bits.
    """
    each = WORD // bits
    raised = (codes.to(torch.int64) + 2 ** (bits - 1)).unflatten(1, (-1, each))
    words = (raised << torch.arange(each) * bits).sum(-1)
    return torch.where(words >= 2 ** (WORD - 1), words - 2**WORD, words).to(torch.int32)


def _linears(hf: PreTrainedModel) -> list[tuple[str, nn.Linear]]:
    head = lm_head(hf)
    return [
        (name, part)
        for name, part in hf.named_modules()
        if isinstance(part, nn.Linear) and part is not head
    ]


def _describe(
    hf: PreTrainedModel, folder: Path, bits: int, size: int, ignored: list[str]
) -> None:
    config = copy.deepcopy(hf.config)
    weights: dict[str, Any] = {
        "num_bits": bits,
        "type": "int",
        "symmetric": True,
        "strategy": "channel",
    }
    if size:
        weights |= {"strategy": "group", "group_size": size}
    config.update(
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "quantization_status": "compressed",
                "ignore": ignored,
                "config_groups": {
                    "group_0": {"targets": ["Linear"], "weights": weights}
                },
            }
        }
    )
    config.save_pretrained(folder)
    if hf.generation_config is not None:
        hf.generation_config.save_pretrained(folder)


def _bytes(tensors: dict[str, Tensor]) -> int:
    return sum(
        {tensor.data_ptr(): tensor.nbytes for tensor in tensors.values()}.values()
    )
