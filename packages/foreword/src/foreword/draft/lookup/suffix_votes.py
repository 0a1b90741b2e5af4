"""Continuation counts: what followed earlier matches of the last tokens, grown into the
likeliest draft tree.

After SuffixDecoding (Oliaro et al. 2025, arXiv 2411.04975). In Python (the reference)
and in C (native/suffix.py).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from foreword.draft.acceptance import AcceptanceEstimate
from foreword.draft.lookup.suffix_index import SIZES, SuffixIndex
from foreword.native import suffix
from foreword.types.draft import DraftTree

VOTERS = 32
"""Earlier matches that are counted: the longest first, then the latest."""
WEIGHT = {size: 4**rank for rank, size in enumerate(reversed(SIZES))}
"""Weight of a match, by the number of tokens that agree before it."""
GREEDY, SAMPLED = 0.5, 3.5
"""Prior weight of an unseen continuation; lower at temperature 0."""

Votes = list[tuple[tuple[int, ...], int]]
"""(continuation, weight)."""


@dataclass(frozen=True, slots=True)
class ContinuationCounts:
    """The weighted continuations of a text, and the estimate of their acceptance."""

    votes: Votes
    acceptance: AcceptanceEstimate
    greedy: bool = True

    def grown(
        self,
        most: int,
        floor: float = 0.0,
        ends: Collection[int] = (),
        *,
        branches: bool = True,
    ) -> DraftTree:
        """Return at most `most` draft tokens with probabilities above `floor`,
        likeliest first; none after `ends`, and no branches unless asked.

        The probability of a draft token is its parent's, times the probability that any
        counted token comes next, times its share of the weight. PPM estimates the
        second likewise (Bloom 1998, "secondary escape estimation").
        """
        tree, serial = DraftTree(), count()
        waiting: list[tuple[float, int, int, int, int, Votes]] = []

        def branch(votes: Votes, depth: int, parent: int, probability: float) -> None:
            split, total = divided(votes, depth)
            if not total:
                return
            probability *= (
                self.acceptance.probability(*self._kind(total, depth)) / total
            )
            children = [
                (-probability * weight, next(serial), token, parent, depth + 1, voters)
                for token, (weight, voters) in split.items()
            ]
            for child in children if branches else [min(children)]:
                if -child[0] > floor:
                    heappush(waiting, child)

        branch(self.votes, 0, -1, 1.0)
        while waiting and len(tree.tokens) < most:
            probability, _, token, parent, depth, voters = heappop(waiting)
            node = tree.add(token, parent, -probability)
            if token not in ends:
                branch(voters, depth, node, -probability)
        return tree

    def close(self, emitted: Sequence[int]) -> None:
        """Learn whether each emitted token was counted, up to the first not counted."""
        votes = self.votes
        for depth, token in enumerate(emitted):
            split, total = divided(votes, depth)
            if not total:
                return
            self.acceptance.learn(self._kind(total, depth)[0], token in split)
            if token not in split:
                return
            votes = split[token][1]

    def _kind(self, weight: int, depth: int) -> tuple[tuple[bool, bool, int], float]:
        """Return the class of a node, by its weight on a log scale, and its prior
        acceptance probability.
        """
        novelty = GREEDY if self.greedy else SAMPLED
        return (self.greedy, depth == 0, weight.bit_length()), weight / (
            weight + novelty
        )


def divided(votes: Votes, depth: int) -> tuple[dict[int, tuple[int, Votes]], int]:
    """Return the continuations grouped by their token at `depth`, each with its weight,
    and the total weight.
    """
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


def votes(
    text: SuffixIndex, past: SuffixIndex | None, context: Sequence[int], length: int
) -> Votes:
    """Return the weighted continuations, up to `length` tokens, of earlier matches of
    the end of `context`.
    """
    matches = [(size, text, at) for at, size in text.find(context, VOTERS)]
    if past is not None:
        matches += [(size, past, at) for at, size in past.find(context, VOTERS)]
        # stable: of equal matches those in this text come first
        matches.sort(key=lambda match: -match[0])
    counted: dict[tuple[int, ...], int] = {}
    for size, index, position in matches[:VOTERS]:
        followed = index.after(position, length)
        counted[followed] = counted.get(followed, 0) + WEIGHT[size]
    return list(counted.items())


class CountsFactory:
    """Counts of what followed in a text and in past answers, in C or as defined here,
    and what was learned from such counts.
    """

    def __init__(self, *, native: bool | None = None) -> None:
        """`native`: count in C; None = where there is a compiler."""
        self.native = suffix.library() is not None if native is None else native
        self._acceptance = AcceptanceEstimate()
        self._trust = suffix.Trust(), suffix.Trust()
        """The same in C, by (sampled, greedy)."""

    def __call__(
        self,
        text: SuffixIndex,
        past: SuffixIndex | None,
        context: Sequence[int],
        length: int,
        *,
        greedy: bool,
    ) -> ContinuationCounts | suffix.NativeCounts:
        if not self.native:
            counted = votes(text, past, context, length)
            return ContinuationCounts(counted, self._acceptance, greedy)
        indexes = text.located, None if past is None else past.located
        novelty = GREEDY if greedy else SAMPLED
        trust = self._trust[greedy]
        return suffix.NativeCounts(*indexes, context, length, trust, novelty)
