"""The differences that are bet on: other distributions of the next token."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from foreword_lab.certify.betting.rows import (
    Distribution,
    Rows,
)

FLOOR = 1e-300
"""Probability that stands for zero under a logarithm."""
SIZES = 0.05 * 1.8 ** np.arange(9)
"""Nats. Tilts, from a twentieth of a feature's logarithm to all but its absence."""
SHARES = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8])
"""Parts of the tokens that are the drafter's."""
LENIENCE = np.array([1.1, 1.25, 1.5, 2.0, 4.0])
"""Factors of p/q in the acceptance of a draft token (Leviathan et al. 2023, A.5)."""
WEIGHTS = np.array([2.0, 8.0, 32.0])
"""Tokens. Weights of the distribution against what was drawn after the same text."""
RANKS = (1, 2, 5, 10, 20, 50)
MASSES = (0.5, 0.8, 0.9, 0.95, 0.99)
STEEP = 6.0
"""Nats. Tokens that are less likely than the likeliest by more count as by this."""
APART = 3.0
"""Nats. The same of how a drafter and its target differ."""

Others: TypeAlias = Float[np.ndarray, "row strength cell"]
Feature: TypeAlias = Callable[[Rows], Distribution]
Difference: TypeAlias = tuple[str, Callable[[Rows], Others], int]
"""(name, distributions of all strengths, number of strengths)."""


def tilted(name: str, feature: Feature) -> list[Difference]:
    """Return the differences of higher and of lower odds for a feature's tokens."""

    def tilt(
        rows: Rows,
        sizes: Float[np.ndarray, "strength"],
    ) -> Others:
        odds = np.exp(sizes[:, None] * feature(rows)[:, None])
        others = rows.target[:, None] * odds
        return others / others.sum(-1, keepdims=True)

    return [
        (f"more {name}", lambda rows: tilt(rows, SIZES), len(SIZES)),
        (f"fewer {name}", lambda rows: tilt(rows, -SIZES), len(SIZES)),
    ]


def _from_rank(rank: int) -> Feature:
    def feature(rows: Rows) -> Distribution:
        width = rows.target.shape[1]
        cells = np.arange(width)
        beyond = (cells >= rank) | (cells == width - 1)
        return np.broadcast_to(beyond.astype(float), rows.target.shape)

    return feature


def _outside(mass: float) -> Feature:
    def feature(rows: Rows) -> Distribution:
        ahead = np.cumsum(rows.target, 1) - rows.target
        return (ahead >= mass).astype(float)

    return feature


def warmth(rows: Rows) -> Distribution:
    """Return how likely each token is, from -1 to 0: another temperature tilts it."""
    logs = _log(rows.target)
    named = logs[:, :-1]
    least = named.min(1, where=rows.target[:, :-1] > 0, initial=0.0)
    logs[:, -1] = np.minimum(logs[:, -1], least)
    return np.clip(logs - logs[:, :1], -STEEP, 0) / STEEP


def neighbours(rows: Rows) -> Distribution:
    """Return whether each token stands in its distribution as the one before did."""
    middle = np.cumsum(rows.target, 1) - rows.target / 2
    return (2 * middle - 1) * rows.before[:, None]


def liked(rows: Rows) -> Distribution:
    """Return how much likelier each token is by the drafter, from -1 to 1."""
    return np.clip(_log(rows.draft) - _log(rows.target), -APART, APART) / APART


def disliked(rows: Rows) -> Distribution:
    """Return the same of tokens that are less likely by the drafter; 0 for others."""
    return np.minimum(liked(rows), 0)


def preferred(rows: Rows) -> Distribution:
    """Return 1 for tokens that are likelier by the drafter, and -1 for others."""
    return np.sign(rows.draft - rows.target)


def unverified(rows: Rows) -> Others:
    """Return the distributions in which a share of the tokens is the drafter's."""
    shares = SHARES[:, None]
    return (1 - shares) * rows.target[:, None] + shares * rows.draft[:, None]


def lenient(rows: Rows) -> Others:
    """Return the distributions of an acceptance with min(1, c p/q)."""
    target, draft = rows.target[:, None], rows.draft[:, None]
    taken = np.minimum(draft, LENIENCE[:, None] * target)
    return _completed(taken, np.clip(rows.target - rows.draft, 0, None))


def unresidual(rows: Rows) -> Others:
    """Return the distribution whose tokens after a rejection are the target's."""
    return _completed(np.minimum(rows.draft, rows.target)[:, None], rows.target)


def same_noise(rows: Rows) -> Others:
    """Return the distribution of a residual r that is drawn with the noise g of the
    refused draft token, as vLLM did (vllm#54282): argmax(log r + g), where log q + g
    was largest at a token without a residual.

    With e = exp(-g) the drawn token is argmin(e / r). An exponential e has no memory:
    of a token y, e / r comes E / r_y after t q_y / r_y, with E and t, the least e / q,
    exponential. `hazard` t is the sum of the rates until the next token can come.
    """
    rest = np.clip(rows.target - rows.draft, 0, None)
    starts = rows.draft / np.maximum(rest, FLOOR)
    order = np.argsort(starts, 1)
    rates = np.take_along_axis(rest, order, 1)
    total = np.maximum(np.cumsum(rates, 1), FLOOR)
    waits = np.diff(np.take_along_axis(starts, order, 1), axis=1)
    hazard = np.cumsum(total[:, :-1] * waits, 1)
    # the mean of exp(-hazard t) over t: nothing has come until then
    still = np.ones((len(total), total.shape[1] + 1))
    still[:, 1:-1] = 1 / (1 + hazard)
    still[:, -1] = 0
    times = -np.diff(still, axis=1) / total
    after = np.cumsum(times[:, ::-1], 1)[:, ::-1]
    residual = np.empty_like(rates)
    np.put_along_axis(residual, order, rates * after, 1)
    return _completed(np.minimum(rows.draft, rows.target)[:, None], residual)


def as_before(rows: Rows) -> Others:
    """Return the distributions that lean to what was drawn after the same text."""
    seen, weights = rows.seen[:, None], WEIGHTS[:, None]
    total = seen.sum(-1, keepdims=True) + weights
    return (seen + weights * rows.target[:, None]) / total


def _completed(taken: Others, rest: Distribution) -> Others:
    """Return `taken`, and what it lacks in proportion to `rest`."""
    parts = rest / np.maximum(rest.sum(-1, keepdims=True), FLOOR)
    missing = np.clip(1 - taken.sum(-1, keepdims=True), 0, None)
    others = taken + missing * parts[:, None]
    return others / others.sum(-1, keepdims=True)


def _log(target: Distribution) -> Distribution:
    return np.log(np.maximum(target, FLOOR))


def families(*, drafted: bool) -> list[list[Difference]]:
    """Return the differences that are bet on, in families of equal stakes; `drafted`:
    with a drafter's probabilities.
    """
    ranks = [tilted(f"tokens from rank {one + 1} on", _from_rank(one)) for one in RANKS]
    masses = [
        tilted(f"tokens outside the likeliest {one:.0%}", _outside(one))
        for one in MASSES
    ]
    repeated = [
        *tilted("recent tokens", lambda rows: rows.recent.astype(float)),
        *tilted("copied tokens", lambda rows: rows.copied.astype(float)),
    ]
    without = [
        [each for pair in ranks for each in pair],
        [each for pair in masses for each in pair],
        tilted("likely tokens", warmth),
        repeated,
        tilted("tokens that stand as the one before", neighbours),
    ]
    if not drafted:
        return without
    return [
        *without,
        [
            *tilted("tokens that the drafter prefers", preferred),
            *tilted("tokens by what the drafter likes", liked),
            *tilted("tokens by what the drafter dislikes", disliked),
        ],
        [
            ("unverified draft tokens", unverified, len(SHARES)),
            ("draft tokens, by lenient acceptance", lenient, len(LENIENCE)),
            ("draft tokens, for want of a residual", unresidual, 1),
            ("draft tokens, by a residual with their noise", same_noise, 1),
        ],
    ]


def learned() -> list[list[Difference]]:
    """Return the families whose distributions come from the tokens so far."""
    return [
        tilted("certain tokens", lambda rows: rows.excess),
        [("tokens as after the same text before", as_before, len(WEIGHTS))],
    ]
