"""From answers with log-probabilities to tokens and their distributions."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from foreword_lab.certify.betting.rows import quantile
from foreword_lab.certify.remote.ask import Scored

RECENT = 8
"""Tokens. The last ones, which a hidden penalty for repetition would avoid."""
CALM = 4.0
"""Tokens. Expected number at which half of an excess counts."""
END = re.compile(r"<[|/]?[^<> ]+[|]?>|\[[A-Z_/]+\]|")
"""Tokens that may end an answer, which servers leave out of it, and empty ones."""
BROKEN = "\N{REPLACEMENT CHARACTER}"
"""In a token of some bytes of a character: several tokens are written alike."""

Written = tuple[str, ...]
"""A prompt, and the tokens after it."""
Drafts = Sequence[Mapping[str, float] | None]
"""Probabilities of the listed tokens of each place by a drafter, if it has them."""


@dataclass(slots=True)
class Memory:
    """Statistics of the tokens so far."""

    drawn: defaultdict[Written, Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    """Tokens drawn after each text."""
    revealed: defaultdict[Written, dict[str, float]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """Probabilities, after each text, of drawn tokens that are not listed."""
    excess: Counter[str] = field(default_factory=Counter)
    """Number of each token less the number expected."""
    expected: Counter[str] = field(default_factory=Counter)
    following: dict[Written, str] = field(default_factory=dict)
    """Token after the last two, when they stood last."""

    def rows(
        self,
        prompt: str,
        tokens: Sequence[Scored],
        exponent: float = 1.0,
        drafts: Drafts | None = None,
    ) -> list[dict[str, Any]]:
        """Return the tokens of an answer as rows for `Rows.joined`, each by what is
        known before it; then learn from it.

        exponent: power of the stated probabilities that was to be sampled: 1 /
        temperature where they are those before it.
        """
        rows: list[dict[str, Any]] = []
        after: Written = (prompt,)
        before = 0.0
        for token, draft in zip(tokens, drafts or [None] * len(tokens), strict=True):
            names, target, ends = distribution(token, exponent, self.revealed[after])
            if names:
                row = self._row(names, target, after)
                size = len(names)
                cell = names.index(token.token) if token.token in names else size
                row["drawn"], row["before"] = cell, before
                row["draft"] = target
                if draft is not None:
                    row["draft"] = _drafted(draft, names, ends, target)
                rows.append(row)
                before = quantile(target, cell)
                self._learn(names, target, after, token)
            after = (*after, token.token)
        return rows

    def _row(
        self, names: list[str], target: Float[np.ndarray, "cell"], after: Written
    ) -> dict[str, Any]:
        """Return the fields of a row that are known before its token."""
        recent = after[1:][-RECENT:]
        copied = self.following.get(recent[-2:]) if len(recent) > 1 else None
        counts = self.drawn[after]
        return {
            "target": target,
            "copied": np.array([*(name == copied for name in names), False]),
            "recent": np.array([*(name in recent for name in names), False]),
            "excess": np.array([*map(self._excess, names), 0.0]),
            "seen": np.array([*(float(counts[name]) for name in names), 0.0]),
        }

    def _excess(self, name: str) -> float:
        share = self.excess[name] / (self.expected[name] + CALM)
        return max(-1.0, min(1.0, share))

    def _learn(
        self,
        names: list[str],
        target: Float[np.ndarray, "cell"],
        after: Written,
        token: Scored,
    ) -> None:
        drawn = token.token
        self.drawn[after][drawn] += 1
        if len(after) > 2:
            self.following[after[-2:]] = drawn
        if drawn in names:
            self.excess[drawn] += 1
        elif token.logprob is not None:
            self.revealed[after][drawn] = math.exp(token.logprob)
        for name, mass in zip(names, target.tolist(), strict=False):
            self.excess[name] -= mass
            self.expected[name] += mass


def known(
    top: tuple[tuple[str, float], ...], count: int
) -> tuple[tuple[str, float], ...]:
    """Return the listed tokens, likeliest first, that are listed whatever is drawn.

    A server that lists `count` tokens may add the drawn one, or may list it instead of
    the last one (vLLM's chat). So the last place says nothing, and a token that is as
    likely as the one before it may be either of two.
    """
    if len(top) < count - 1 or count < 2:
        return top
    least = top[count - 2][1]
    return tuple(pair for pair in top if pair[1] > least)


def distribution(
    token: Scored, exponent: float, revealed: Mapping[str, float]
) -> tuple[list[str], Float[np.ndarray, "cell"], list[str]]:
    """Return the listed tokens, likeliest first, their probabilities and that of all
    others, and the listed tokens that may end the answer; no tokens where the drawn one
    is not among them.

    The distribution is that of tokens that do not end the answer, as most servers leave
    the last one out. Where the exponent is not 1, or several tokens are written alike,
    it is that of the listed tokens alone.

    revealed: probabilities of tokens that are not listed.
    """
    listed = {name: 0.0 for name, _ in token.top}
    for name, logprob in token.top:
        listed[name] += math.exp(logprob)
    is_whole = exponent == 1 and not any(BROKEN in name for name in listed)
    if is_whole:
        listed = {**revealed, **listed}
    ends = [name for name in listed if END.fullmatch(name)]
    cells = {
        name: mass**exponent
        for name, mass in listed.items()
        if name not in ends and BROKEN not in name
    }
    is_ended = END.fullmatch(token.token) is not None
    if is_ended or not cells or not (is_whole or token.token in cells):
        return [], np.zeros(0), ends
    names = sorted(cells, key=lambda name: -cells[name])
    left = max(0.0, 1 - sum(listed.values())) if is_whole else 0.0
    target = np.array([*(cells[name] for name in names), left])
    return names, target / target.sum(), ends


def _drafted(
    draft: Mapping[str, float],
    names: list[str],
    ends: list[str],
    target: Float[np.ndarray, "cell"],
) -> Float[np.ndarray, "cell"]:
    """Return a drafter's distribution over the same cells; the target's if it is 0."""
    masses = [draft.get(name, 0.0) for name in names]
    left = 1 - sum(masses) - sum(draft.get(name, 0.0) for name in ends)
    whole = np.array([*masses, max(0.0, left) if target[-1] else 0.0])
    total = whole.sum()
    return whole / total if total > 0 else target
