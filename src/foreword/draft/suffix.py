"""Every earlier place that ends like the text votes for what followed it there, in this text and in past answers.

Knows the tokens of each sequence; needs no model. After SuffixDecoding (Oliaro et al. 2025, arXiv 2411.04975).
"""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

from foreword.draft.archive import Archive
from foreword.draft.base import Drafter, Source
from foreword.draft.history import SIZES, History
from foreword.draft.trust import Trust
from foreword.errors import InvalidRequest
from foreword.model import Model, Tokenizer
from foreword.types import Batch, Draft, Scores, Sequence, Tree, Verdict

VOTERS = 32
"""Earlier places that are heard, the longest matches first and the latest of those first."""
WEIGHT = {size: 4**place for place, size in enumerate(reversed(SIZES))}
"""What a vote counts, by the tokens that agree before it."""
GREEDY, SAMPLED = 0.5, 3.5
"""Votes for "something new", before anything is known: at temperature 0 a text repeats itself more."""
SAVED = 64
"""A history is written to its file when one part in so many is new."""

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


@dataclass(slots=True)
class _Text:
    """One sequence so far, and the votes on its present round."""

    history: History = field(default_factory=lambda: History(1024))
    poll: Poll | None = None

    def read(self, tokens: list[int]) -> None:
        """Take note of what was appended since the last call."""
        if len(tokens) > self.history.capacity:
            self.history = History(2 * len(tokens))
        self.history.extend(tokens[self.history.end :])


class SuffixDrafter(Drafter):
    """Counts what followed the last tokens of the text earlier in it, and in past answers to the same tenant.

    A place where the last 16 tokens agree counts 256 times as much as one where a single token does, and all vote
    together. Guesses are the likeliest paths: a tree grown best first, or the likeliest chain where trees are not
    judged. What a finished sequence wrote is remembered; its prompt is not.
    """

    summary = "earlier places in the text and in past answers vote for what follows"
    takes = "a file of past answers"

    def __init__(self, archive: Archive, path: Path | None = None) -> None:
        """`archive` holds past answers; it is written to `path`, if there is one, as it grows."""
        self.archive = archive
        self._path, self._unsaved = path, 0
        self._texts: dict[int, _Text] = {}
        self._trust = Trust()

    @classmethod
    def load(cls, source: Source, target: Model, tokenizer: Tokenizer | None) -> SuffixDrafter:
        """`source` is the file of a history, read if it is there and written as answers are finished; None keeps none.

        Raises InvalidRequest for a file that holds something else, VocabularyMismatch for one of another vocabulary.
        """
        del tokenizer
        if source is None:
            return cls(Archive(target.vocab))
        if not isinstance(source, str | Path):
            raise InvalidRequest("this method guesses without a draft model: give draft='file of a history', or None")
        path = Path(source)
        if path.is_dir() or not path.parent.is_dir():
            raise InvalidRequest(f"{path} cannot be the file of a history; name a file in a folder that exists")
        return cls(Archive.load(path, target.vocab) if path.exists() else Archive(target.vocab), path)

    def save(self, path: Path | None = None) -> None:
        """Write the past answers to a file that `load` reads. Raises InvalidRequest where no path is known."""
        path = path or self._path
        if path is None:
            raise InvalidRequest("there is no file to save the history to; give a path")
        self.archive.save(path)
        self._unsaved = 0

    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        return Draft([self._guess(batch, s, budget) for s, budget in zip(batch.sequences, nodes, strict=True)])

    def observe(self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores) -> None:
        for sequence, tokens in zip(batch.sequences, verdict.said(draft), strict=True):
            text = self._texts.get(sequence.id)
            if text is not None and text.poll is not None:
                text.poll.close(tokens)
                text.poll = None

    def release(self, sequence: Sequence) -> None:
        if self._texts.pop(sequence.id, None) is None:
            return
        written = sequence.tokens[sequence.prompt :]
        self.archive.add(sequence.params.tenant, written)
        self._unsaved += len(written)
        if self._path and self._unsaved * SAVED >= len(self.archive):
            self.save()

    def _guess(self, batch: Batch, sequence: Sequence, budget: int) -> Tree:
        """At most `budget` guesses, none after an end-of-text token."""
        if budget <= 0:
            return Tree()
        text = self._texts.setdefault(sequence.id, _Text())
        text.read(sequence.tokens)
        past, context = self.archive[sequence.params.tenant], sequence.tokens[-SIZES[0] :]
        found = votes(text.history, past, context, min(budget, batch.reach(sequence)))
        text.poll = Poll(found, self._trust, sequence.params.greedy)
        return text.poll.grown(Bounds(budget, batch.floor, sequence.eos, batch.trees))
