"""The coupled tree: best-first growth from drafter scores and the target's noise."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.tree.calibration import Calibration
from foreword.model import Read
from foreword.sampling.logits import weights
from foreword.sampling.noise import extended, gumbel
from foreword.types import Batch, DraftTree, Request
from foreword.types.growth import Children, GrownTree, TreeRequest

BREADTH = 8
"""Children considered per node; the ninth is the target's token once in 100 times."""
ROWS = 16
"""Nodes expanded in one forward of the drafter."""
READS = 192
"""Nodes expanded in total."""
DEEP = 24
"""Most levels."""
SHARPER = 1.1
"""Factor a of a log q + G, which ranks children: a small model spreads its mass wider
than the target. At 1.1 the best child is right more often than at 1 by 0.46 points
(bundled pair), or by 0.14 to 0.27 (Qwen2.5-Coder); docs/trees.md has the table.
"""


Grow = Callable[[Read, TreeRequest], GrownTree | None]
"""Runs a read and grows a tree after it; None where the backend grows none."""
_Ranked = tuple[list[int], list[float], list[float]]
"""Possible children of a node, best first: tokens, a log q + G, probabilities."""


@dataclass(slots=True)
class CoupledTree:
    """Tree of one request, grown level by level.

    A level holds the children of every node that may still be among the best `most`; a
    node that is not cannot have such a child. The result equals that of best-first
    search, with one forward per level.
    """

    request: Request
    most: int
    floor: float
    calibration: Calibration
    breadth: int = BREADTH
    deep: int = DEEP
    """Most levels."""
    expand: float = 0.0
    """Probability; see `Batch.expand`."""
    tree: DraftTree = field(default_factory=DraftTree)
    """All nodes while the tree grows; at the end, the best of them."""
    depth: int = 0
    open: list[int] = field(default_factory=lambda: [-1])
    """Nodes to expand next; -1 = the last committed token."""
    read: list[int] = field(default_factory=list)
    """Nodes that were expanded before, in that order."""
    expanded: DraftTree = field(default_factory=DraftTree)
    """The nodes that were expanded, once the tree is complete."""
    children: Sequence[Children] = field(default_factory=list)
    """Possible children of the last committed token, then of each expanded node."""

    def extend(self, batch: Batch, logits: Float[Tensor, "open vocab"]) -> None:
        """Add each open node's children from raw logits, and open the next level."""
        self._take(self._ranked(self._values(batch, logits)))

    def _ranked(self, values: Float[Tensor, "rows vocab"]) -> list[_Ranked]:
        """Return each row's best children by a log q + G, without forbidden tokens."""
        scale = self.calibration.scale(self.request.params.temperature)
        best = values.topk(min(self.breadth, values.shape[-1]))
        shares = ((best.values - values.amax(-1, keepdim=True)) / scale).exp()
        probabilities = shares / (
            (values - values.amax(-1, keepdim=True)) / scale
        ).exp().sum(-1, keepdim=True)
        rows = zip(
            best.indices.tolist(),
            best.values.tolist(),
            probabilities.nan_to_num(0.0).tolist(),
            strict=True,
        )
        return [_possible(*row) for row in rows]

    def _take(self, rows: Sequence[_Ranked]) -> None:
        """Add the best children of each open node, and open the next level."""
        fresh = []
        for parent, (tokens, _, probabilities) in zip(self.open, rows, strict=True):
            reached = 1.0 if parent < 0 else self.tree.probabilities[parent]
            for token, probability in zip(tokens, probabilities, strict=True):
                if reached * probability > self.floor:
                    node = self.tree.add(token, parent, reached * probability)
                    fresh.append(node)
        self.read += [node for node in self.open if node >= 0]
        self.depth += 1
        children = [(tokens, values) for tokens, values, _ in rows]
        self.children = [*self.children, *children]
        self.open = self._promising(fresh)
        if not self.open:
            self.expanded = self.tree.pruned(self.read)
            self.tree = self.tree.cut(self.most, self.floor)

    def predicted_block(
        self, batch: Batch, levels: Float[Tensor, "deep vocab"]
    ) -> None:
        """Grow all levels from predicted raw logits; for plain parameters only."""
        while self.open:
            self.extend(batch, levels[self.depth].expand(len(self.open), -1))

    def at_once(self, batch: Batch, grow: Grow, read: Read) -> bool:
        """Read the end of the text and grow all levels in one call, equal to `extend`
        after every read.

        For plain parameters only. Returns False if the model's backend grows no trees.
        """
        params, deep = self.request.params, min(self.most, self.deep)
        key = batch.draws.key(self.request)
        scale = self.calibration.scale(params.temperature)
        ends = tuple(self.request.eos)
        shape = (self.most, self.breadth, deep, ROWS, READS)
        grown = grow(
            read,
            TreeRequest(
                *shape,
                self.floor,
                params.temperature / SHARPER,
                scale,
                key,
                ends,
                expand=self.expand,
            ),
        )
        if grown is None:
            return False
        self.tree = DraftTree(grown.tokens, grown.parents, grown.probabilities)
        self.open = []
        self.expanded = DraftTree(grown.read, grown.read_parents)
        self.children = grown.children
        return True

    def _values(
        self, batch: Batch, logits: Float[Tensor, "open vocab"]
    ) -> Float[Tensor, "open vocab"]:
        """Return a log q + G after each open node; -inf if its parameters fail."""
        params, paths = self.request.params, [self.path(node) for node in self.open]
        if params.plain:
            scores = (
                logits.float() if params.greedy else logits.float() / params.temperature
            )
        else:
            scores = torch.full_like(logits, -math.inf, dtype=torch.float32)
            for row, path in enumerate(paths):
                try:
                    scores[row] = weights(logits[row : row + 1], self.request, [path])[
                        0
                    ]
                except Exception:  # noqa: BLE001 - a user's processor; this node gets no children
                    continue
        key = batch.draws.key(self.request)
        if key is None:
            return scores
        keys = [extended(key, path) for path in paths]
        noise = gumbel(keys, scores.shape[-1], device=scores.device)
        return SHARPER * scores + noise

    def _promising(self, fresh: list[int]) -> list[int]:
        """Return a level's nodes whose children may be among the best, in order."""
        if self.depth >= min(self.most, self.deep):
            return []
        probabilities, ends = self.tree.probabilities, self.request.eos
        last = 0.0
        if len(probabilities) >= self.most:
            last = sorted(probabilities, reverse=True)[self.most - 1]
        alive = [
            node
            for node in fresh
            if probabilities[node] >= last
            and probabilities[node] > self.expand
            and self.tree.tokens[node] not in ends
        ]
        alive.sort(key=lambda node: -probabilities[node])
        return alive[: min(ROWS, READS - len(self.read))]

    def path(self, node: int) -> list[int]:
        """Return the tokens from the last committed token to this node."""
        tokens: list[int] = []
        while node >= 0:
            tokens.append(self.tree.tokens[node])
            node = self.tree.parents[node]
        return tokens[::-1]

    def next(self, past: int) -> Read | None:
        """Return the next read, after `past` tokens; None once the tree is complete."""
        if not self.open:
            return None
        nodes = self.tree.pruned([*self.read, *self.open])
        tokens = nodes.tokens[len(self.read) :]
        return Read(
            self.request.id,
            past,
            tokens,
            nodes.parents,
            len(tokens),
            held=len(self.read),
        )

    def learn(self, emitted: Sequence[int]) -> None:
        """Update the calibration from the tokens that the target emitted."""
        expanded = {
            draft_token: index
            for index, draft_token in enumerate(
                zip(self.expanded.parents, self.expanded.tokens, strict=True)
            )
        }
        node = -1
        for token in emitted:
            tokens, values = self.children[node + 1]
            if token not in tokens:
                return
            self.calibration.learn(
                values, tokens.index(token), self.request.params.temperature
            )
            node = expanded.get((node, token), -2)
            if node < 0:
                return


def _possible(
    tokens: list[int], values: list[float], probabilities: list[float]
) -> _Ranked:
    """Return the children without impossible ones, last since they are -inf."""
    if values and values[-1] > -math.inf:
        return tokens, values, probabilities
    count = sum(value > -math.inf for value in values)
    return tokens[:count], values[:count], probabilities[:count]
