"""Filters of the law of the next token, from the few tokens that can pass them; defined in sampling.py and nucleus.py.

A vocabulary of 150,000 is looked through once, in C; the rest is about some twenty tokens with `top_k`, or some hundred
without. Pure; each row by itself. Knows rows and parameters; knows nothing about sequences.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foreword.native import draws
from foreword.nucleus import Logits, fixed, goal, kept, nucleus
from foreword.types import SamplingParams

MOST = 256
"""Candidates that are looked for."""
SPARE = 8
"""Looked for beside those wanted: if even the last of them is as likely as the last one wanted, there are ties."""


def fit(params: SamplingParams, vocab: int) -> bool:
    """Whether `among_best` is made for these parameters: they leave few tokens of so many."""
    return 0 < params.top_k <= MOST and params.top_k + SPARE < vocab and params.typical_p >= 1


def among_best(scores: Logits, params: SamplingParams) -> tuple[Logits, Bool[Tensor, "rows"]]:
    """Log-weights after temperature, `top_k`, `top_p` and `min_p`; and which rows this cannot tell, for they have ties
    or too few tokens."""
    values, ids = _best(scores, params.top_k + SPARE)
    values = values / params.temperature
    cut = values[:, params.top_k - 1 : params.top_k]
    untold = (values[:, -1:] == cut) | (values[:, -1:] == -math.inf)
    values = values.masked_fill(values < cut, -math.inf)
    if params.top_p < 1:
        values = nucleus(values, params.top_p)
    if params.min_p > 0:
        values = values.masked_fill(values < values[:, :1] + math.log(params.min_p), -math.inf)
    return torch.full_like(scores, -math.inf).scatter_(1, ids, values), untold.squeeze(1)


def top_p(scores: Logits, share: float, among: int = MOST) -> Logits:
    """`nucleus` without sorting rows that a few candidates decide."""
    if among * 8 > scores.shape[-1]:
        return nucleus(scores, share)
    values, ids = _best(scores, among)
    masses = fixed(scores.softmax(-1, dtype=torch.float32).gather(1, ids)).cumsum(-1)
    found = kept(scores, values, masses, share)
    undecided = (masses[:, -1] < goal(share)).nonzero().squeeze(1)
    if len(undecided):
        found[undecided] = nucleus(scores[undecided], share)
    return found


def _best(scores: Logits, most: int) -> tuple[Float[Tensor, "rows most"], Int[Tensor, "rows most"]]:
    """The likeliest of each row, best first, of equals the first id first."""
    found = draws.best(scores, most) if scores.device.type == "cpu" else None
    if found is not None:
        return found
    ids, _ = scores.topk(most).indices.sort(dim=-1)
    values, order = scores.gather(1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(1, order)
