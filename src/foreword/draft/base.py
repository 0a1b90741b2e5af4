"""GUESS: the interface of every drafter, and how chosen guesses become a draft (drawn.py draws the others).

Knows batches and laws; knows nothing about the target, the rule or the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from foreword.errors import InvalidRequest
from foreword.model import HFModel, Model, Tokenizer
from foreword.types import Batch, Draft, Scores, Sequence, Verdict

MODEL = "a draft model"

Source = str | Path | HFModel | Model | None
"""What a drafter is made from: a folder or hub id, a model in memory (driven already or not), or nothing."""


class Drafter(ABC):
    """Guesses the next tokens of every sequence in a batch. May keep state by sequence id."""

    summary: ClassVar[str] = ""
    """One line for `foreword methods`."""
    takes: ClassVar[str] = ""
    """What `draft=` may be: MODEL, or another few words. Empty where it can be nothing."""
    needs: ClassVar[bool] = False
    """It cannot do without."""
    draws: ClassVar[bool] = False
    """Its guesses are drawn from a law that comes with them, where the rule compares laws."""

    @classmethod
    def load(cls, source: Source, target: Model, tokenizer: Tokenizer | None) -> Drafter:
        """Make a drafter for a target. The default takes no source and needs nothing."""
        del target, tokenizer  # for those who need them
        if source is not None:
            raise InvalidRequest(f"{cls.__name__} guesses without a draft model; leave draft=None")
        return cls()

    @abstractmethod
    def propose(self, batch: Batch, nodes: List[int]) -> Draft:
        """At most nodes[i] guesses for sequence i; 0 asks for none. A count of 0 means nothing to say."""

    def observe(  # noqa: B027 - a hook, empty by default
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        """Called after the decision of a round, before the new tokens are committed. `draft` is what was scored."""

    def release(self, sequence: Sequence) -> None:  # noqa: B027 - a hook, empty by default
        """The sequence has ended; forget it."""


def chosen(guesses: List[List[int]], device: torch.device | None = None) -> Draft:
    """A chain of chosen tokens for each sequence; chosen means: not drawn from a law that a rule must know."""
    width = max((len(guess) for guess in guesses), default=0)
    tokens = torch.tensor(
        [[*guess, *[0] * (width - len(guess))] for guess in guesses], dtype=torch.int64, device=device
    )
    tokens = tokens.reshape(len(guesses), width)
    parents = torch.arange(-1, width - 1, device=device).expand(len(guesses), width)
    count = torch.tensor([len(guess) for guess in guesses], dtype=torch.int64, device=device)
    return Draft(tokens, parents, count)


def first_chain(draft: Draft) -> Draft:
    """The chain of a tree's first children, for a target or a rule that judges chains only."""
    rows: list[list[int]] = []
    for parents, count in zip(draft.parents.tolist(), draft.count.tolist(), strict=True):
        row: list[int] = []
        for node in range(count):
            if parents[node] == (row[-1] if row else -1):
                row.append(node)
        rows.append(row)
    nodes = chosen(rows, draft.tokens.device)
    tokens = draft.tokens.gather(1, nodes.tokens)
    place = torch.arange(len(rows), device=tokens.device)[:, None]
    probs = None if draft.probs is None else draft.probs[place, nodes.tokens]
    chances = None if draft.chances is None else draft.chances[place, nodes.tokens]
    return Draft(tokens, nodes.parents, nodes.count, probs, chances=chances)


@dataclass(slots=True)
class Tree:
    """Guesses of one sequence, parents before children; `chances` as in `Draft`, none at all where they are unknown."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)

    def add(self, token: int, parent: int, chance: float) -> int:
        """Add a guess after node `parent` (-1: the last committed token). Returns its node."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.chances.append(chance)
        return len(self.tokens) - 1

    @classmethod
    def of(cls, draft: Draft, row: int) -> Tree:
        """The guesses of one sequence in a draft."""
        count = int(draft.count[row])
        chances = [] if draft.chances is None else draft.chances[row, :count].tolist()
        return cls(draft.tokens[row, :count].tolist(), draft.parents[row, :count].tolist(), chances)

    def offspring(self) -> dict[int, dict[int, int]]:
        """node -> token -> the guess of that token which follows it; -1 stands for the last committed token."""
        found: dict[int, dict[int, int]] = {}
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            found.setdefault(parent, {}).setdefault(token, node)
        return found

    def children(self, parent: int) -> dict[int, int]:
        """token -> the guess of that token which follows `parent`."""
        return self.offspring().get(parent, {})

    def cut(self, most: int, floor: float = 0.0) -> Tree:
        """The tree of its `most` likeliest guesses above `floor`, likeliest first."""
        return self.pruned(self.best(most, floor))

    def straight(self) -> Tree:
        """The chain of its first children."""
        chain: list[int] = []
        for node, parent in enumerate(self.parents):
            if parent == (chain[-1] if chain else -1):
                chain.append(node)
        return self.pruned(chain)

    def best(self, most: int, floor: float = 0.0) -> list[int]:
        """The `most` likeliest nodes above `floor`, best first; with each its parent, which is likelier."""
        order = sorted(range(len(self.tokens)), key=lambda n: -self.chances[n])  # stable: parents stay first
        return [node for node in order[:most] if self.chances[node] > floor]

    def pruned(self, nodes: List[int]) -> Tree:
        """The tree of these nodes, in that order."""
        place = {-1: -1} | {node: at for at, node in enumerate(nodes)}
        return Tree(
            [self.tokens[node] for node in nodes],
            [place[self.parents[node]] for node in nodes],
            [self.chances[node] for node in nodes],
        )


def planted(trees: List[Tree], device: torch.device | None = None) -> Draft:
    """A draft of chosen guesses in trees, one for each sequence, padded."""
    width = max((len(tree.tokens) for tree in trees), default=0)

    def padded(rows: Iterable[list[int]] | Iterable[list[float]], fill: float, dtype: torch.dtype) -> Tensor:
        table = [[*row, *[fill] * (width - len(row))] for row in rows]
        return torch.tensor(table, dtype=dtype, device=device).reshape(len(trees), width)

    straight = all(parent == node - 1 for tree in trees for node, parent in enumerate(tree.parents))
    chain = chosen([tree.tokens for tree in trees], device) if straight else None
    known = all(len(tree.chances) == len(tree.tokens) for tree in trees)
    return Draft(
        padded((tree.tokens for tree in trees), 0, torch.int64),
        chain.parents if chain else padded((tree.parents for tree in trees), -1, torch.int64),
        torch.tensor([len(tree.tokens) for tree in trees], dtype=torch.int64, device=device),
        chain=straight,
        chances=padded((tree.chances for tree in trees), 0.0, torch.float32) if known else None,
    )
