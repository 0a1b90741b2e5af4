"""Copies from an answer that the caller expects: an edit keeps most of a file, a translation of a form its lines.

Knows the expected tokens and the text so far; needs no model. After OpenAI's "Predicted Outputs" (2024).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as List
from dataclasses import dataclass, field

from foreword.draft.base import Drafter
from foreword.draft.trust import Trust
from foreword.types import Batch, Draft, Scores, Sequence, Tree, Verdict

SIZES = (8, 4, 2, 1)
"""Lengths of the runs that are looked up, longest first."""
LONGEST = 16
"""Tokens of agreement beyond which a place is not trusted more."""


class PredictedDrafter(Drafter):
    """Goes on with the expected answer from where the text has come to in it.

    That is after the longest run of last tokens that the expectation holds; of several places the nearest at or after
    the one reached before, so that the copy leaves it at an edit and joins it again behind. While no run is found the
    edit is taken to be as long as what it replaces. Without `SamplingParams.prediction` the prompt itself is expected.
    """

    summary = "copies from an answer that the caller expects (prediction=), or from the prompt"

    def __init__(self) -> None:
        self._copies: dict[int, Copy] = {}

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        return Draft([self._guess(batch, s, budget) for s, budget in zip(batch.sequences, nodes, strict=True)])

    def observe(self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        for sequence, tokens in zip(batch.sequences, verdict.said(draft), strict=True):
            copy = self._copies.get(sequence.id)
            if copy is not None:
                copy.learn(tokens)

    def release(self, sequence: Sequence) -> None:
        self._copies.pop(sequence.id, None)

    def _guess(self, batch: Batch, sequence: Sequence, budget: int) -> Tree:
        """A chain of at most `budget` guesses, none after an end-of-text token."""
        if budget <= 0:
            return Tree()
        copy = self._copies.get(sequence.id)
        if copy is None:
            copy = self._copies[sequence.id] = Copy.of(sequence)
        copy.follow(sequence.tokens)
        tree, chance = Tree(), 1.0
        for node, token in enumerate(copy.guess(budget)):
            chance *= copy.chance(node)
            if chance <= batch.floor:
                break
            tree.add(token, node - 1, chance)
            if token in sequence.eos:
                break
        return tree


@dataclass(slots=True)
class Copy:
    """An expected text, and where in it a growing text has come to."""

    expected: tuple[int, ...]
    start: int
    """Tokens of the growing text before this one are not looked for."""
    read: int
    """Tokens of the growing text that were looked at."""
    place: int = 0
    """The growing text agrees with the expected one up to here."""
    stray: int = 0
    """Tokens that it wrote since."""
    agreed: int = 0
    """Tokens that agree before the place of the last guess, at most LONGEST."""
    guessed: tuple[int, ...] = ()
    _trust: Trust = field(default_factory=Trust)
    _places: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    """Where each run of SIZES is followed by something, ascending."""

    def __post_init__(self) -> None:
        for place in range(1, len(self.expected)):
            for size in SIZES:
                if size <= place:
                    self._places.setdefault(self.expected[place - size : place], []).append(place)

    @classmethod
    def of(cls, sequence: Sequence) -> Copy:
        """The copy from a sequence's prediction, from its beginning; or from its prompt, once a run is found in it."""
        if sequence.prediction:
            return cls(sequence.prediction, start=sequence.prompt, read=sequence.prompt)
        prompt = tuple(sequence.tokens[: sequence.prompt])
        return cls(prompt, start=0, read=len(prompt) - 1, place=len(prompt))

    def follow(self, tokens: list[int]) -> None:
        """Find the place that the text has come to; reads what was appended since the last call."""
        for end in range(self.read, len(tokens)):
            on = not self.stray and self.place < len(self.expected) and self.expected[self.place] == tokens[end]
            self.place, self.stray = self.place + on, self.stray + (not on)
            self._join(tokens[max(self.start, end + 1 - SIZES[0]) : end + 1])
        self.read = max(self.read, len(tokens))
        written = tokens[max(self.start, len(tokens) - LONGEST) :]
        self.agreed = 0 if self.stray else agreement(self.expected[: self.place], written)

    def _join(self, written: list[int]) -> None:
        """Go to the nearest place after the longest run that ends the text, if there is one."""
        for size in SIZES:
            places = self._places.get(tuple(written[-size:])) if size <= len(written) else None
            if places:
                self.place, self.stray = places[min(bisect_left(places, self.place), len(places) - 1)], 0
                return

    def guess(self, count: int) -> tuple[int, ...]:
        """At most `count` tokens that are expected next."""
        start = self.place + self.stray
        self.guessed = self.expected[start : start + count]
        return self.guessed

    def chance(self, node: int) -> float:
        """The chance that a guess of this chain comes true if those before it did."""
        agreed = self.agreed + node
        return self._trust.chance(_kind(agreed), (agreed + 0.7) / (agreed + 1.3))

    def learn(self, tokens: list[int]) -> None:
        """The text went on with these tokens."""
        for node, (guess, token) in enumerate(zip(self.guessed, tokens, strict=False)):
            self._trust.learn(_kind(self.agreed + node), guess == token)
            if guess != token:
                break
        self.guessed = ()


def agreement(left: List[int], right: List[int]) -> int:
    """How many last tokens of two texts are the same."""
    count = 0
    for one, other in zip(reversed(left), reversed(right), strict=False):
        if one != other:
            break
        count += 1
    return count


def _kind(agreed: int) -> int:
    """Guesses after 1, 2, 4, 8 and 16 tokens of agreement are of different kinds."""
    return min(agreed, LONGEST).bit_length()
