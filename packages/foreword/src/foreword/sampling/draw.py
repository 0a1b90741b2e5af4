"""Draws from the next-token distribution (Gumbel-max), and reported log-probabilities.

Rows are positions (nodes of a draft tree). A row's result never depends on other rows,
as plain decoding must agree.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from foreword.native import sampling
from foreword.sampling import FORBIDDEN, Logits
from foreword.sampling.noise import gumbel
from foreword.types import DraftTree, SamplingParams, TokenLogprob

UNCHANGED = SamplingParams(temperature=1)
"""Parameters that sample from log-weights as they are."""


def one_hot(weights: Logits) -> Logits:
    """Return the distribution at temperature 0 as log-weights: 0 at each row's argmax,
    -inf elsewhere.
    """
    best = weights.argmax(-1, keepdim=True)
    forbidden = torch.full_like(weights, FORBIDDEN)
    return forbidden.scatter_(-1, best, 0.0)


def probs(weights: Logits) -> Logits:
    """Return the probabilities of log-weights, Float32; each row sums to 1."""
    return weights.softmax(-1, dtype=torch.float32)


def draw(weights: Logits, gumbel: Logits | None) -> Int[Tensor, "rows"]:
    """Return argmax(weights + gumbel) of each row, Int64: a sample of softmax(weights)
    (Gumbel-max; Gumbel 1954).

    `gumbel` None is temperature 0. The first index wins ties.
    """
    return (weights if gumbel is None else weights + gumbel).argmax(-1)


def choose(
    logits: Logits, params: SamplingParams, keys: Sequence[int] | None
) -> list[int]:
    """Draw with plain parameters (`params.plain`), row r with the noise of keys[r]:
    `draw(weights(...), gumbel(keys, ...))`; without keys at temperature 0.

    In one pass of C if there is a compiler.
    """
    tokens = sampling.likeliest(logits, keys, params.temperature)
    if tokens is not None:
        return tokens
    if keys is None:
        return draw(logits.float(), None).tolist()
    noise = gumbel(keys, logits.shape[-1], device=logits.device)
    return draw(logits.float() / params.temperature, noise).tolist()


def walk(
    logits: Logits, params: SamplingParams, key: int | None, tree: DraftTree
) -> tuple[list[int], int] | None:
    """Draw with plain parameters along the accepted path only: each draw decides which
    node is drawn after next.

    Row 0 is drawn after the committed tokens with the noise of `key` (None: at
    temperature 0), row i + 1 after node i with the noise of its path. Returns the
    accepted nodes and the draw after them, as `follow` (verify/match.py) does from all
    draws of `choose`. None without C.
    """
    return sampling.follow(logits, key, params.temperature, tree.tokens, tree.parents)


def logprobs(logits: Logits, tokens: list[int], top: int) -> list[TokenLogprob]:
    """Return log-probabilities (nats) of tokens[r] and `top`, under the raw target."""
    rows = logits.float().log_softmax(-1)
    index = torch.tensor(tokens, device=rows.device)
    emitted = rows.gather(1, index[:, None])[:, 0].tolist()
    best = rows.topk(min(top, rows.shape[-1]))
    columns = (
        tokens,
        emitted,
        best.indices.tolist(),
        best.values.tolist(),
    )
    return [
        TokenLogprob(token, value, tuple(zip(ids, values, strict=True)))
        for token, value, ids, values in zip(*columns, strict=True)
    ]
