"""Draws from the next-token distribution (Gumbel-max), and reported log-probabilities.

Rows are positions (nodes of a draft tree). A row's result never depends on other rows,
as plain decoding must agree.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from foreword.native import sampling
from foreword.sampling import (
    FORBIDDEN,
    Logits,
)
from foreword.sampling.noise import gumbel
from foreword.types import DraftTree, TokenLogprob

Draw = tuple[float, int | None]
"""Temperature of a row, and the key of its noise; None at temperature 0."""
CHUNK = 64
"""Rows that are drawn at once: their noise takes 33 MB of float32 over 128,000 tokens.
"""


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


def drawn_tokens(logits: Logits, draws: Sequence[Draw]) -> Int[Tensor, "rows"]:
    """Draw with plain parameters (`params.plain`): `draw(weights(...), gumbel(...))`,
    each row with its own temperature and key; on the device of the logits.
    """
    starts = range(0, len(logits), CHUNK)
    chunks = [slice(start, start + CHUNK) for start in starts]
    parts = [_drawn(logits[chunk], draws[chunk]) for chunk in chunks]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _drawn(logits: Logits, draws: Sequence[Draw]) -> Int[Tensor, "rows"]:
    keys = [key for _, key in draws]
    if all(key is None for key in keys):
        return draw(logits.float(), None)
    device = logits.device
    vocab = logits.shape[-1]
    rows = [(1.0, 0.0) if key is None else (heat, 1.0) for heat, key in draws]
    heats, noisy = torch.tensor(rows).to(device)[..., None].unbind(1)
    noise = gumbel([key or 0 for key in keys], vocab, device=device)
    return draw(logits.float() / heats, noise * noisy)


def walk(logits: Logits, draw: Draw, tree: DraftTree) -> tuple[list[int], int] | None:
    """Draw with plain parameters along the accepted path only: each draw decides which
    node is drawn after next.

    Row 0 is drawn after the committed tokens with the noise of `key` (None: at
    temperature 0), row i + 1 after node i with the noise of its path. Returns the
    accepted nodes and the draw after them, as `follow` (verify/match.py) does from all
    draws. None without C.
    """
    temperature, key = draw
    return sampling.follow(logits, key, temperature, tree.tokens, tree.parents)


def logprobs(
    logits: Logits,
    tokens: list[int],
    top: int,
) -> list[TokenLogprob]:
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
