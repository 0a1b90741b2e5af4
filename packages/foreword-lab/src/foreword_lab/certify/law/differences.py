"""The kinds of difference that are bet on: each names other laws for the next token."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from foreword_lab.certify.law.rows import Law, Rows

FLOOR = 1e-300
"""Probability that stands for zero under a logarithm."""
SIZES = 0.05 * 1.8 ** np.arange(9)
"""Nats. Tilts, from a twentieth of a feature's logarithm to all but its absence."""
SHARES = np.array([0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8])
"""Shares of tokens that are the drafter's."""
LENIENCE = np.array([1.1, 1.25, 1.5, 2.0, 4.0])
"""Factors of p/q in the acceptance of a draft token (Leviathan et al. 2023, A.5)."""
WEIGHTS = np.array([2.0, 8.0, 32.0])
"""Tokens. Weights of the law against what was drawn after the same text."""
RANKS = (1, 2, 5, 10, 20, 50)
MASSES = (0.5, 0.8, 0.9, 0.95, 0.99)
STEEP = 6.0
"""Nats. Tokens that are less likely than the likeliest by more count as by this."""
APART = 3.0
"""Nats. The same of how a drafter and its target differ."""

Laws: TypeAlias = Float[np.ndarray, "row strength cell"]
Feature = Callable[[Rows], Law]


@dataclass(frozen=True, slots=True)
class Difference:
    """One kind of difference, in several strengths."""

    name: str
    """What is likelier, or less likely, than it should be."""
    laws: Callable[[Rows], Laws]
    """Return the law of each strength."""
    strengths: int = len(SIZES)
    learns: bool = False
    """Whether the other law comes from the tokens so far; else it is fixed."""


def tilted(
    name: str, feature: Feature, *, learns: bool = False
) -> tuple[Difference, Difference]:
    """Return the differences of higher and of lower odds for a feature's tokens."""

    def laws(rows: Rows, sizes: Float[np.ndarray, "strength"]) -> Laws:
        odds = np.exp(sizes[:, None] * feature(rows)[:, None])
        tilt = rows.law[:, None] * odds
        return tilt / tilt.sum(-1, keepdims=True)

    more = Difference(f"more {name}", lambda rows: laws(rows, SIZES), learns=learns)
    fewer = Difference(f"fewer {name}", lambda rows: laws(rows, -SIZES), learns=learns)
    return more, fewer


def _from_rank(rank: int) -> Feature:
    def feature(rows: Rows) -> Law:
        width = rows.law.shape[1]
        cells = np.arange(width)
        beyond = (cells >= rank) | (cells == width - 1)
        return np.broadcast_to(beyond.astype(float), rows.law.shape)

    return feature


def _outside(mass: float) -> Feature:
    def feature(rows: Rows) -> Law:
        ahead = np.cumsum(rows.law, 1) - rows.law
        return (ahead >= mass).astype(float)

    return feature


def warmth(rows: Rows) -> Law:
    """Return how likely each token is, from -1 to 0: another temperature tilts it."""
    logs = _log(rows.law)
    named = logs[:, :-1]
    least = named.min(1, where=rows.law[:, :-1] > 0, initial=0.0)
    logs[:, -1] = np.minimum(logs[:, -1], least)
    return np.clip(logs - logs[:, :1], -STEEP, 0) / STEEP


def neighbours(rows: Rows) -> Law:
    """Return whether each token stands where the token before stood in its law."""
    middle = np.cumsum(rows.law, 1) - rows.law / 2
    return (2 * middle - 1) * rows.before[:, None]


def liked(rows: Rows) -> Law:
    """Return how much likelier each token is by the drafter, from -1 to 1."""
    return np.clip(_log(rows.draft) - _log(rows.law), -APART, APART) / APART


def disliked(rows: Rows) -> Law:
    """Return the same of tokens that are less likely by the drafter; 0 for others."""
    return np.minimum(liked(rows), 0)


def preferred(rows: Rows) -> Law:
    """Return 1 for tokens that are likelier by the drafter, and -1 for others."""
    return np.sign(rows.draft - rows.law)


def unverified(rows: Rows) -> Laws:
    """Return the laws in which a share of the tokens is the drafter's."""
    shares = SHARES[:, None]
    return (1 - shares) * rows.law[:, None] + shares * rows.draft[:, None]


def lenient(rows: Rows) -> Laws:
    """Return the laws of an acceptance with min(1, c p/q)."""
    law, draft = rows.law[:, None], rows.draft[:, None]
    taken = np.minimum(draft, LENIENCE[:, None] * law)
    return _completed(taken, np.clip(rows.law - rows.draft, 0, None))


def unresidual(rows: Rows) -> Laws:
    """Return the law whose tokens after a rejection are the target's."""
    return _completed(np.minimum(rows.draft, rows.law)[:, None], rows.law)


def as_before(rows: Rows) -> Laws:
    """Return the laws that lean to what was drawn after the same text."""
    seen, weights = rows.seen[:, None], WEIGHTS[:, None]
    total = seen.sum(-1, keepdims=True) + weights
    return (seen + weights * rows.law[:, None]) / total


def _completed(taken: Laws, rest: Law) -> Laws:
    """Return `taken`, and what it lacks in proportion to `rest`."""
    parts = rest / np.maximum(rest.sum(-1, keepdims=True), FLOOR)
    missing = np.clip(1 - taken.sum(-1, keepdims=True), 0, None)
    laws = taken + missing * parts[:, None]
    return laws / laws.sum(-1, keepdims=True)


def _log(law: Law) -> Law:
    return np.log(np.maximum(law, FLOOR))


def families(*, drafted: bool) -> list[list[Difference]]:
    """Return the differences that are bet on, in families of equal stakes; `drafted`:
    with a drafter's probabilities.
    """
    ranks = [tilted(f"tokens from rank {one + 1} on", _from_rank(one)) for one in RANKS]
    masses = [
        tilted(f"tokens outside the likeliest {one:.0%}", _outside(one))
        for one in MASSES
    ]
    without = [
        [each for pair in ranks for each in pair],
        [each for pair in masses for each in pair],
        [*tilted("likely tokens", warmth)],
        [
            *tilted("recent tokens", lambda rows: rows.recent.astype(float)),
            *tilted("copied tokens", lambda rows: rows.copied.astype(float)),
        ],
        [*tilted("tokens that stand as the one before", neighbours)],
        [*tilted("certain tokens", lambda rows: rows.excess, learns=True)],
        [
            Difference(
                "tokens as after the same text before",
                as_before,
                len(WEIGHTS),
                learns=True,
            )
        ],
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
            Difference("unverified draft tokens", unverified, len(SHARES)),
            Difference("draft tokens, by lenient acceptance", lenient, len(LENIENCE)),
            Difference("draft tokens, for want of a residual", unresidual, 1),
        ],
    ]
