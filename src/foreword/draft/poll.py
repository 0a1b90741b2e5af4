"""Earlier places vote for what follows, and the votes grow into the likeliest guesses: the plain definition.

Knows histories of tokens; knows nothing about sequences, tenants or drafters. After SuffixDecoding (Oliaro et al. 2025,
arXiv 2411.04975). Its twin in C is poll_native.py.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Protocol, runtime_checkable

from foreword.draft.history import SIZES, History
from foreword.draft.trust import Trust
from foreword.guesses import Tree

VOTERS = 32
"""Earlier places that are heard, the longest matches first and the latest of those first."""
WEIGHT = {size: 4**place for place, size in enumerate(reversed(SIZES))}
"""What a vote counts, by the tokens that agree before it."""
GREEDY, SAMPLED = 0.5, 3.5
"""Votes for "something new", before anything is known: at temperature 0 a text repeats itself more."""

Votes = list[tuple[tuple[int, ...], int]]
"""(what followed, weight)."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where guessing stops: so many guesses, none below a chance, none after these tokens, no branches."""

    most: int
    floor: float = 0.0
    ends: frozenset[int] = frozenset()
    branches: bool = True


@dataclass(frozen=True, slots=True)
class Poll:
    """The votes on what follows a text, and what experience says of votes like these."""

    votes: Votes
    trust: Trust
    greedy: bool = True

    def grown(self, bounds: Bounds) -> Tree:
        """The likeliest guesses, likeliest first.

        The chance of a guess is that of its parent, times the chance that anything voted for comes next (what PPM calls
        no escape, and estimates likewise: Bloom 1998, "secondary escape estimation"), times its share of the votes.
        """
        tree, serial = Tree(), count()
        waiting: list[tuple[float, int, int, int, int, Votes]] = []

        def branch(votes: Votes, depth: int, parent: int, chance: float) -> None:
            split, total = divided(votes, depth)
            if not total:
                return
            chance *= self.trust.chance(*self._kind(total, depth)) / total
            children = [
                (-chance * weight, next(serial), token, parent, depth + 1, voters)
                for token, (weight, voters) in split.items()
            ]
            for child in children if bounds.branches else [min(children)]:
                if -child[0] > bounds.floor:
                    heappush(waiting, child)

        branch(self.votes, 0, -1, 1.0)
        while waiting and len(tree.tokens) < bounds.most:
            chance, _, token, parent, depth, voters = heappop(waiting)
            node = tree.add(token, parent, -chance)
            if token not in bounds.ends:
                branch(voters, depth, node, -chance)
        return tree

    def close(self, said: List[int]) -> None:
        """The text went on with these tokens; learn whether they had a vote, one after the other while they had."""
        votes = self.votes
        for depth, token in enumerate(said):
            split, total = divided(votes, depth)
            if not total:
                return
            self.trust.learn(self._kind(total, depth)[0], token in split)
            if token not in split:
                return
            votes = split[token][1]

    def _kind(self, weight: int, depth: int) -> tuple[tuple[bool, bool, int], float]:
        """Votes of about one weight are of one kind; and what to believe of them before anything is known."""
        novelty = GREEDY if self.greedy else SAMPLED
        return (self.greedy, depth == 0, weight.bit_length()), weight / (weight + novelty)


def divided(votes: Votes, depth: int) -> tuple[dict[int, tuple[int, Votes]], int]:
    """The votes by the token that followed after `depth` others, with what they count; and what all count together."""
    split: dict[int, tuple[int, Votes]] = {}
    total = 0
    for vote in votes:
        followed, weight = vote
        if depth < len(followed):
            before, voters = split.get(followed[depth], (0, []))
            voters.append(vote)
            split[followed[depth]] = (before + weight, voters)
            total += weight
    return split, total


def votes(text: History, past: History | None, context: List[int], length: int) -> Votes:
    """What followed each earlier place that ends like `context`, up to `length` tokens of it, and what it counts."""
    found = [(size, text, place) for place, size in text.find(context, VOTERS)]
    if past is not None:
        found += [(size, past, place) for place, size in past.find(context, VOTERS)]
        found.sort(key=lambda match: -match[0])  # stable: of equal matches this text's own come first
    counted: dict[tuple[int, ...], int] = {}
    for size, history, place in found[:VOTERS]:
        followed = history.after(place, length)
        counted[followed] = counted.get(followed, 0) + WEIGHT[size]
    return list(counted.items())


@runtime_checkable
class Ballot(Protocol):
    """The votes of one round."""

    def grown(self, bounds: Bounds) -> Tree:
        """The likeliest guesses, likeliest first."""
        ...

    def close(self, said: List[int]) -> None:
        """The text went on with these tokens; learn from it."""
        ...


@runtime_checkable
class Polls(Protocol):
    """Takes the votes of a round, and remembers what became of earlier ones."""

    def __call__(self, text: History, past: History | None, context: List[int], length: int, *, greedy: bool) -> Ballot:
        """What followed earlier places that end like `context`, here and in past texts, up to `length` tokens of it."""
        ...


@dataclass(frozen=True, slots=True)
class PlainPolls:
    """Votes as defined here."""

    trust: Trust = field(default_factory=Trust)

    def __call__(self, text: History, past: History | None, context: List[int], length: int, *, greedy: bool) -> Poll:
        return Poll(votes(text, past, context, length), self.trust, greedy)
