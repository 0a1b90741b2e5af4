"""The votes of earlier places, counted and grown in C (native/ballots.c). Its plain definition is poll.py.

Knows histories of tokens; knows nothing about sequences, tenants or drafters.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field

from foreword.draft.history import History
from foreword.draft.poll import GREEDY, SAMPLED, Bounds, PlainPolls, Polls
from foreword.guesses import Tree
from foreword.native import ballots


@dataclass(frozen=True, slots=True)
class NativePoll:
    """The votes on what follows a text."""

    votes: ballots.Poll
    novelty: float

    def grown(self, bounds: Bounds) -> Tree:
        return Tree(*self.votes.grown(bounds.most, bounds.floor, bounds.ends, bounds.branches, self.novelty))

    def close(self, said: List[int]) -> None:
        self.votes.close(said)


@dataclass(frozen=True, slots=True)
class NativePolls:
    """Votes in C; what is learnt from greedy texts and from sampled ones is kept apart."""

    greedy: ballots.Trust = field(default_factory=ballots.Trust)
    sampled: ballots.Trust = field(default_factory=ballots.Trust)

    def __call__(
        self, text: History, past: History | None, context: List[int], length: int, *, greedy: bool
    ) -> NativePoll:
        there = None if past is None else past.located
        trust, novelty = (self.greedy, GREEDY) if greedy else (self.sampled, SAMPLED)
        return NativePoll(ballots.Poll(text.located, there, context, length, trust), novelty)


def polls() -> Polls:
    """The fastest way that there is here."""
    return PlainPolls() if ballots.library() is None else NativePolls()
