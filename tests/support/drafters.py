"""Drafters that no user would want: they spoil the truth, lie, overreach or break."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import torch

from foreword.draft.base import Drafter, chosen
from foreword.draft.tree.coupled import CoupledTree
from foreword.draft.tree.drafter import ModelDrafter
from foreword.model import Read
from foreword.types import Batch, Draft, DraftTree, Request, Scores, Verdict
from running import Answer

Truth = Callable[[Request], list[int]]
"""The tokens that a sequence will write, from its first on; as many as are known."""


def known(answers: Sequence[Answer]) -> Truth:
    """The truth about earlier requests, which differ in prompt or seed."""
    texts = {_name(answer.request): answer.tokens for answer in answers}
    return lambda request: texts[_name(request)]


def _name(request: Request) -> tuple[tuple[int, ...], int]:
    return tuple(request.tokens[: request.prompt]), request.seed


class Foresight(Drafter):
    """Proposes the truth, tokens spoilt with a probability; token 1 after its end."""

    def __init__(self, truth: Truth, spoilt: float = 0.0, vocab: int = 8192) -> None:
        self.truth, self.spoilt, self.vocab, self.dice = truth, spoilt, vocab, Random(3)
        self.observed = self.released = 0

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        return chosen(self.chains(batch, nodes))

    def chains(self, batch: Batch, nodes: Sequence[int]) -> list[list[int]]:
        pairs = zip(batch.requests, nodes, strict=True)
        return [[self.token_at(one, depth) for depth in range(n)] for one, n in pairs]

    def observe(
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        self.observed += 1

    def release(self, request: Request) -> None:
        self.released += 1

    def token_at(self, request: Request, depth: int) -> int:
        rest = self.truth(request)[request.produced + depth :]
        token = rest[0] if rest else 1
        if self.dice.random() < self.spoilt:
            return (token + 1 + self.dice.randrange(7)) % self.vocab
        return token


class RandomTree(Foresight):
    """The same in trees of random shape, with twins and dead branches."""

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        width = max(nodes)
        tokens = torch.zeros(len(nodes), width, dtype=torch.int64)
        parents = torch.full((len(nodes), width), -1)
        pairs = zip(batch.requests, nodes, strict=True)
        for row, (request, count) in enumerate(pairs):
            depths: list[int] = []
            for node in range(count):
                parent = self.dice.randrange(-1, node)
                depths.append(depths[parent] + 1 if parent >= 0 else 0)
                parents[row, node] = parent
                tokens[row, node] = self.token_at(request, depths[node])
        return Draft.padded(tokens, parents, torch.tensor(nodes), chain=False)


class Breaking(Foresight):
    """Works until its turn comes, then does `wrong`, which raises or is no draft."""

    def __init__(
        self,
        truth: Truth,
        wrong: Callable[[Batch, Sequence[int]], Draft],
        *,
        where: str,
        after: int = 3,
    ) -> None:
        super().__init__(truth)
        self.wrong, self.where, self.left = wrong, where, after
        self.calls = 0

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        self.calls += 1
        now = self._now("propose")
        return self.wrong(batch, nodes) if now else super().propose(batch, nodes)

    def observe(
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        if self._now("observe"):
            self.wrong(batch, [])

    def release(self, request: Request) -> None:
        if self.where == "release":
            raise RuntimeError("release broke")

    def _now(self, where: str) -> bool:
        self.left -= where == self.where
        return where == self.where and self.left < 0


class StatesRecorder(RandomTree):
    """Remembers what the target computed at every token of every sequence."""

    def __init__(
        self, truth: Truth, layers: tuple[int, ...], spoilt: float = 0.3
    ) -> None:
        super().__init__(truth, spoilt)
        self.hidden_layers = layers
        self.seen: dict[int, list[torch.Tensor]] = {}

    def on_hidden_states(
        self, request: Request, start: int, hidden: torch.Tensor
    ) -> None:
        states = self.seen.setdefault(request.id, [])
        assert sum(map(len, states)) == start
        states.append(hidden.clone())


Start = Callable[[], tuple[ModelDrafter, Request, Batch]]
"""A new drafter that is ready to propose, and for which sequence."""
GrownTree = tuple[DraftTree, CoupledTree]
IN_C, AT_ONCE = (CoupledTree, "at_once"), (ModelDrafter, "_at_once")
"""What is refused for a tree to grow without C, from known distributions."""


def grown(
    start: Start,
    most: int,
    patch: pytest.MonkeyPatch,
    without: tuple[type, str] | None = None,
) -> GrownTree:
    """Return a tree of at most so many draft tokens, with a fast path or without."""
    with patch.context() as inside:
        if without is not None:
            inside.setattr(*without, lambda *_: False)
        drafter, one, batch = start()
        return drafter.propose(batch, [most]).trees[0], drafter._coupled[one.id]


def check_same(found: GrownTree, wanted: GrownTree) -> None:
    """Check that both trees have the same draft tokens, probabilities and children."""
    (ours, quick), (theirs, slow) = found, wanted
    assert (ours.tokens, ours.parents) == (theirs.tokens, theirs.parents)
    assert ours.probabilities == pytest.approx(theirs.probabilities, rel=1e-4, abs=1e-6)
    assert quick.expanded.tokens == slow.expanded.tokens
    assert quick.expanded.parents == slow.expanded.parents
    pairs = zip(quick.children, slow.children, strict=True)
    for (tokens, values), (right, true) in pairs:
        assert tokens == right
        assert values == pytest.approx(true, rel=1e-4, abs=1e-4)


def paths(draft: Draft, row: int = 0) -> dict[tuple[int, ...], float]:
    """Every draft token by the tokens that lead to it."""
    tree = draft.trees[row]
    return dict(zip(map(tuple, tree.paths[1:]), tree.probabilities, strict=True))


PARENTS = [-1, -1, 0, 1, 1, 2, 4]
LEVELS = ((0, 2), (2, 5), (5, 7))
"""A tree of draft tokens, read level by level."""


def levels(past: int, nodes: list[int]) -> list[Read]:
    return [Read(1, past, nodes[a:b], PARENTS[:b], b - a, held=a) for a, b in LEVELS]


def scores(reader: Any, text: list[int], states: torch.Tensor) -> torch.Tensor:
    """Logits of a head along a text, then of a tree of draft tokens after it."""
    rows, nodes = len(text) - len(PARENTS), text[-len(PARENTS) :]
    reader.target_states.add(1, 0, states[:rows])
    logits = [reader.read([Read(1, 0, text[:23], keep=23)])]
    logits.append(reader.read([Read(1, 23, text[23:rows], keep=rows - 23)]))
    logits += [reader.read([read]) for read in levels(rows, nodes)]
    return torch.cat(logits).float()


def check_row_bits(reader: Any, text: list[int], states: torch.Tensor) -> None:
    """A row of a head has the same bits alone and in any batch."""
    reader.target_states.add(1, 0, states)
    reader.read([Read(1, 0, text[:20], keep=0)])
    alone = [reader.read([Read(1, row, [text[row]])]) for row in range(20, 33)]
    tree = levels(33, text[33:40])
    alone += [reader.read([level]) for level in tree]
    reader.open(2, 4 * len(text))
    reader.target_states.add(2, 0, states)
    both = [Read(2, 0, text[:7]), Read(1, 20, text[20:33], keep=13)]
    together = [reader.read(both)[1:]]
    together.append(reader.read([Read(2, 7, text[9:11], [-1, -1], 2), tree[0]])[2:])
    together.append(reader.read([tree[1], Read(2, 7, text[7:15])])[:-1])
    together.append(reader.read([Read(2, 15, text[15:18], [-1] * 3, 3), tree[2]])[3:])
    reader.close(2)
    assert torch.equal(torch.cat(alone), torch.cat(together))
