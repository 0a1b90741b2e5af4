"""Triton kernel of Gumbel noise: one launch, where torch takes over a hundred.

Imports Triton, so it is imported only where needed. `plain_gumbel` (sampling/noise.py)
is the reference.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

QUADS = 256
"""Counters of one program; each gives the noise of four tokens."""


@triton.jit
@no_type_check
def _noise(
    words,  # [4, rows] int64: keys, depths, stream words, rounds
    out,  # [rows, vocab] float32
    rows,
    vocab,
    QUADS: tl.constexpr,
):
    """Write the noise of some tokens of a row."""
    row = tl.program_id(0)
    quad = tl.program_id(1) * QUADS + tl.arange(0, QUADS)
    key = tl.load(words + row)
    depth = tl.load(words + rows + row).to(tl.int32)
    stream = tl.load(words + 2 * rows + row).to(tl.int32)
    round_ = tl.load(words + 3 * rows + row).to(tl.int32)
    first, second, third, fourth = tl.philox(key, quad, depth, stream, round_)
    even, odd = tl.interleave(first, third), tl.interleave(second, fourth)
    unit = (tl.interleave(even, odd).to(tl.float64) + 0.5) * 2.0**-32
    noise = -tl.log(-tl.log(unit))
    token = tl.program_id(1) * (4 * QUADS) + tl.arange(0, 4 * QUADS)
    at = row.to(tl.int64) * vocab + token
    tl.store(out + at, noise.to(tl.float32), mask=token < vocab)


def gumbel_of_words(
    words: Int[Tensor, "4 rows"], vocab: int
) -> Float[Tensor, "rows vocab"]:
    """Return the noise of `plain_gumbel` on the device of `words`, Int64: keys as the
    same 64 bits, depths, stream words and rounds.

    The launch depends on sizes only, so it can be recorded.
    """
    rows = words.shape[1]
    out = torch.empty(rows, vocab, dtype=torch.float32, device=words.device)
    grid = rows, triton.cdiv(vocab, 4 * QUADS)
    with torch.cuda.device_of(words):
        _noise[grid](words, out, rows, vocab, QUADS=QUADS)
    return out
