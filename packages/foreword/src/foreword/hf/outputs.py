"""Outputs of transformers' `generate` with `return_dict_in_generate`, plus statistics,
by kind of model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.generation.utils import (
    GenerateDecoderOnlyOutput,
    GenerateEncoderDecoderOutput,
)

from foreword.types import Stats


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """Output of a decoder-only model.

    `scores` and `logits` of a row that has ended give the padding token probability 1.
    """

    scores: tuple[Tensor, ...] | None = None  # type: ignore[assignment] - transformers declares a tuple of one
    logits: tuple[Tensor, ...] | None = None  # type: ignore[assignment]
    stats: tuple[Stats, ...] | None = None
    """One per row."""
    seeds: tuple[int, ...] | None = None
    """Seed of each row; pass the first as `seed` to reproduce the text."""


@dataclass
class SpeculativeSeq2SeqOutput(GenerateEncoderDecoderOutput):
    """Output of an encoder-decoder; fields as in SpeculativeOutput.

    `sequences` are what the decoder read and wrote.
    """

    scores: tuple[Tensor, ...] | None = None  # type: ignore[assignment]
    logits: tuple[Tensor, ...] | None = None  # type: ignore[assignment]
    stats: tuple[Stats, ...] | None = None
    seeds: tuple[int, ...] | None = None


def steps(rows: Sequence[list[Tensor]], length: int, pad: int) -> tuple[Tensor, ...]:
    """Return the scores of each step, Float32[batch, vocab]; empty without any."""
    table = []
    for at in range(length if rows else 0):
        shape = next(row[at] for row in rows if at < len(row))
        ended = torch.full_like(shape, -torch.inf)
        ended[:, pad] = 0.0
        table.append(torch.cat([row[at] if at < len(row) else ended for row in rows]))
    return tuple(table)
