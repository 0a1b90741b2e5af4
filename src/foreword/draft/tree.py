"""Grows a coupled tree of guesses, the likeliest first, from a drafter's scores and the noise that the target will use.

Knows laws, noise and chances; knows nothing about how a drafter scores a text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.confidence import Confidence
from foreword.model import Read
from foreword.native.tree import Ask, Children, Grown
from foreword.sampling import weights
from foreword.types import Batch, Sequence, Tree

BREADTH = 8
"""Children that are looked at after each guess; the ninth foresees the target once in a hundred times."""
ROWS = 16
"""Guesses whose children are asked for in one forward of the drafter."""
READS = 192
"""Guesses whose children are asked for at all."""
DEEP = 24
"""Levels at most."""


@runtime_checkable
class Grows(Protocol):
    """Something that may know how to grow a whole tree in one call."""

    def grow(self, read: Read, ask: Ask) -> Grown | None: ...


@runtime_checkable
class Foresees(Protocol):
    """Something whose laws depend on how far ahead a guess is, and not on the guesses before it."""

    def ahead(self, read: Read) -> Float[Tensor, "deep vocab"]:
        """Raw logits of every depth at once."""
        ...


_Ranked = tuple[list[int], list[float], list[float]]
"""The tokens that may follow a guess, best first, their log q + G and their chances."""


@dataclass(slots=True)
class Growth:
    """The tree of one sequence while it grows, a level at a time.

    A level holds the children of every guess that may still be among the best `most`; a guess that is not cannot have
    a child that is. So the tree that comes out is the one that best-first search finds, with a forward for each level.
    """

    sequence: Sequence
    most: int
    floor: float
    confidence: Confidence
    breadth: int = BREADTH
    deep: int = DEEP
    """Levels at most."""
    tree: Tree = field(default_factory=Tree)
    """All that was thought of while it grows; in the end the best of it."""
    depth: int = 0
    open: list[int] = field(default_factory=lambda: [-1])
    """Guesses whose children are asked for; -1 = the last committed token."""
    read: list[int] = field(default_factory=list)
    """Guesses that were asked for before, in that order."""
    known: Tree = field(default_factory=Tree)
    """The guesses that were asked for, once the tree is done."""
    children: List[Children] = field(default_factory=list)
    """What may follow the text, then what may follow each guess that was asked for."""

    def extend(self, batch: Batch, logits: Float[Tensor, "open vocab"]) -> None:
        """Take the drafter's raw logits after each open guess; open the next level."""
        values = self._values(logits, batch.draws.drafting(self.sequence, self.depth))
        self._take(self._ranked(values))

    def _ranked(self, values: Float[Tensor, "rows vocab"]) -> list[_Ranked]:
        """The best children that log q + G promises, row by row; none that a filter or a processor forbids."""
        scale = self.confidence.scale(self.sequence.params.temperature)
        best = values.topk(min(self.breadth, values.shape[-1]))
        shares = ((best.values - values.amax(-1, keepdim=True)) / scale).exp()
        chances = shares / ((values - values.amax(-1, keepdim=True)) / scale).exp().sum(-1, keepdim=True)
        found = zip(best.indices.tolist(), best.values.tolist(), chances.nan_to_num(0.0).tolist(), strict=True)
        return [_possible(*row) for row in found]

    def _take(self, rows: List[_Ranked]) -> None:
        """These are the best children of each open guess; open the next level."""
        fresh = []
        for parent, (tokens, _, odds) in zip(self.open, rows, strict=True):
            reached = 1.0 if parent < 0 else self.tree.chances[parent]
            fresh += [
                self.tree.add(token, parent, reached * chance)
                for token, chance in zip(tokens, odds, strict=True)
                if reached * chance > self.floor
            ]
        self.read += [node for node in self.open if node >= 0]
        self.depth, self.children = self.depth + 1, [*self.children, *((tokens, values) for tokens, values, _ in rows)]
        self.open = self._promising(fresh)
        if not self.open:
            self.known, self.tree = self.tree.pruned(self.read), self.tree.cut(self.most, self.floor)

    def foreseen(self, batch: Batch, model: Foresees, read: Read) -> None:
        """Read the end of the text and grow to the last level from the laws that it foresees, for a plain law."""
        deep = min(self.most, self.deep)
        values = self._values(model.ahead(read)[:deep], batch.draws.foreseeing(self.sequence, deep))
        rows = self._ranked(values)
        while self.open:
            self._take([rows[self.depth]] * len(self.open))

    def at_once(self, batch: Batch, model: Grows, read: Read) -> bool:
        """Read the end of the text and grow to the last level in one call, equal to `extend` after every read.

        For a plain law. False where the model's driver grows no trees.
        """
        params, deep = self.sequence.params, min(self.most, self.deep)
        noise = batch.draws.foreseeing(self.sequence, deep)
        scale, ends = self.confidence.scale(params.temperature), tuple(self.sequence.eos)
        shape = (self.most, self.breadth, deep, ROWS, READS)
        grown = model.grow(read, Ask(*shape, self.floor, params.temperature, scale, noise, ends))
        if grown is None:
            return False
        self.tree, self.open = Tree(grown.tokens, grown.parents, grown.chances), []
        self.known, self.children = Tree(grown.read, grown.read_parents), grown.children
        return True

    def _values(self, logits: Float[Tensor, "open vocab"], noise: Tensor | None) -> Float[Tensor, "open vocab"]:
        """log q + G after each open guess, up to a constant; -inf where the request's own parameters fail."""
        params = self.sequence.params
        if params.plain:
            scores = logits.float() if params.greedy else logits.float() / params.temperature
        else:
            scores = torch.full_like(logits, -math.inf, dtype=torch.float32)
            for row, node in enumerate(self.open):
                try:
                    scores[row] = weights(logits[row : row + 1], self.sequence, [self.path(node)])[0]
                except Exception:  # noqa: BLE001 - a processor is not ours; it costs the guesses after this one
                    continue
        return scores if noise is None else scores + noise

    def _promising(self, fresh: list[int]) -> list[int]:
        """The guesses of a level whose children may be among the best, best first."""
        if self.depth >= min(self.most, self.deep):
            return []
        chances, ends = self.tree.chances, self.sequence.eos
        last = sorted(chances, reverse=True)[self.most - 1] if len(chances) >= self.most else 0.0
        alive = [node for node in fresh if chances[node] >= last and self.tree.tokens[node] not in ends]
        return sorted(alive, key=lambda node: -chances[node])[: min(ROWS, READS - len(self.read))]

    def path(self, node: int) -> list[int]:
        """The guesses from the last committed token to this one."""
        tokens: list[int] = []
        while node >= 0:
            tokens.append(self.tree.tokens[node])
            node = self.tree.parents[node]
        return tokens[::-1]

    def next(self, past: int) -> Read | None:
        """What the drafter must read for the next level, after `past` tokens of text; None when the tree is done."""
        if not self.open:
            return None
        nodes = self.tree.pruned([*self.read, *self.open])
        tokens = nodes.tokens[len(self.read) :]
        return Read(self.sequence.id, past, tokens, nodes.parents, len(tokens), held=len(self.read))

    def learn(self, said: List[int]) -> None:
        """What the target wrote instead of these guesses, or along them."""
        asked = {guess: place for place, guess in enumerate(zip(self.known.parents, self.known.tokens, strict=True))}
        place = -1
        for token in said:
            tokens, values = self.children[place + 1]
            if token not in tokens:
                return
            self.confidence.learn(values, tokens.index(token), self.sequence.params.temperature)
            place = asked.get((place, token), -2)
            if place < 0:
                return


def _possible(tokens: list[int], values: list[float], chances: list[float]) -> _Ranked:
    """Children without those that cannot come: they are last, for their values are -inf."""
    if values and values[-1] > -math.inf:
        return tokens, values, chances
    count = sum(value > -math.inf for value in values)
    return tokens[:count], values[:count], chances[:count]
