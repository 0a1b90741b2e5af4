"""From a server's answers with log-probabilities to tokens and their laws."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from foreword_lab.certify.law.rows import Row, place
from foreword_lab.certify.remote.ask import Scored

RECENT = 8
"""Tokens. The last ones, which a hidden penalty for repetition would avoid."""
CALM = 4.0
"""Tokens. Expected number at which half of an excess counts."""
END = re.compile(r"<[|/]?[^<> ]+[|]?>|\[[A-Z_/]+\]|")
"""Tokens that may end an answer, which servers leave out of it, and empty ones."""
BROKEN = "\N{REPLACEMENT CHARACTER}"
"""In a token of some bytes of a character: several tokens are written alike."""


@dataclass(frozen=True, slots=True)
class Text:
    """One sampled answer."""

    prompt: str
    """What it answers, in one text for each prompt and source."""
    tokens: tuple[Scored, ...]
    exponent: float = 1.0
    """Power of the stated probabilities that was to be sampled: 1/temperature where
    they are those before it.
    """
    drafts: tuple[dict[str, float] | None, ...] | None = None
    """Probabilities of each token's cells by a drafter, which samples as the target."""


@dataclass(slots=True)
class Memory:
    """What the tokens so far showed."""

    drawn: defaultdict[tuple[str, ...], Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    """Tokens drawn after each text."""
    revealed: defaultdict[tuple[str, ...], dict[str, float]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """Probabilities, after each text, of drawn tokens that are not listed."""
    excess: Counter[str] = field(default_factory=Counter)
    """Number of each token less the number expected."""
    expected: Counter[str] = field(default_factory=Counter)
    following: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Token after the last two, when they stood last."""

    def rows(self, texts: Iterable[Text]) -> list[Row]:
        """Return the tokens of texts, each by what is known before it; then learn."""
        rows = []
        for text in texts:
            written: list[str] = []
            before = 0.0
            for index, token in enumerate(text.tokens):
                after = (text.prompt, *written)
                law = stated(token, text.exponent, self.revealed[after])
                if law is not None:
                    drafted = text.drafts[index] if text.drafts else None
                    row = self._row(law, after, token.token, drafted, before)
                    rows.append(row)
                    before = place(row.law, row.drawn)
                    self._learn(law, after, token)
                written.append(token.token)
        return rows

    def _row(
        self,
        law: "Stated",
        after: tuple[str, ...],
        drawn: str,
        drafted: dict[str, float] | None,
        before: float,
    ) -> Row:
        written = after[1:]
        copied = self.following.get(written[-2:]) if len(written) > 1 else None
        return Row(
            law.law,
            law.names.index(drawn) if drawn in law.names else len(law.names),
            law.law if drafted is None else law.of_drafter(drafted),
            _cells([name == copied for name in law.names], False),
            _cells([name in written[-RECENT:] for name in law.names], False),
            _cells([*map(self._excess, law.names)], 0.0),
            _cells([float(self.drawn[after][name]) for name in law.names], 0.0),
            before,
        )

    def _excess(self, name: str) -> float:
        share = self.excess[name] / (self.expected[name] + CALM)
        return max(-1.0, min(1.0, share))

    def _learn(self, law: "Stated", after: tuple[str, ...], token: Scored) -> None:
        drawn = token.token
        self.drawn[after][drawn] += 1
        if len(after) > 2:
            self.following[after[-2:]] = drawn
        if drawn in law.names:
            self.excess[drawn] += 1
        elif token.logprob is not None:
            self.revealed[after][drawn] = math.exp(token.logprob)
        for name, mass in zip(law.names, law.law.tolist(), strict=False):
            self.excess[name] -= mass
            self.expected[name] += mass


@dataclass(frozen=True, slots=True)
class Stated:
    """The law of a token that does not end the answer, by its server."""

    names: list[str]
    """Tokens, likeliest first."""
    law: Float[np.ndarray, "cell"]
    """Their probabilities, and that of all others; 0 where the server does not say."""
    ends: frozenset[str]
    """Listed tokens that may end the answer."""

    def of_drafter(self, drafted: dict[str, float]) -> Float[np.ndarray, "cell"]:
        """Return a drafter's law over the same cells; this law if it has none."""
        masses = np.array([drafted.get(name, 0.0) for name in self.names])
        left = 1 - sum(drafted.get(name, 0.0) for name in self.ends) - masses.sum()
        whole = np.append(masses, max(0.0, left) if self.law[-1] else 0.0)
        total = whole.sum()
        return whole / total if total > 0 else self.law


def stated(
    token: Scored, exponent: float, revealed: Mapping[str, float]
) -> Stated | None:
    """Return the law of a token; None where it is not among the tokens of that law.

    The law is that of tokens that do not end the answer: those that do are left out by
    most servers. Where the exponent is not 1, or several tokens are written alike, it
    is that of the listed tokens alone.

    revealed: probabilities of tokens that are not listed.
    """
    listed = {name: 0.0 for name, _ in token.top}
    for name, logprob in token.top:
        listed[name] += math.exp(logprob)
    is_whole = exponent == 1 and not any(BROKEN in name for name in listed)
    if is_whole:
        listed = {**revealed, **listed}
    ends = frozenset(name for name in listed if END.fullmatch(name))
    cells = {
        name: mass**exponent
        for name, mass in listed.items()
        if name not in ends and BROKEN not in name
    }
    is_listed = token.token in cells
    if END.fullmatch(token.token) or not (is_listed or is_whole) or not cells:
        return None
    names = sorted(cells, key=lambda name: -cells[name])
    left = max(0.0, 1 - sum(listed.values())) if is_whole else 0.0
    law = np.array([*map(cells.__getitem__, names), left])
    return Stated(names, law / law.sum(), ends)


def _cells(values: Sequence[Any], of_others: Any) -> np.ndarray:
    return np.array([*values, of_others])
