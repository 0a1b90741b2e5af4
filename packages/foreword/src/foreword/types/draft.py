"""Draft trees, drafts and verdicts: what one round proposes and what the target
accepts.

Drafters, models and the commit step use lists; rules verify many draft tokens at once
in padded tensors. Each form is computed from the other on first use: for a few draft
tokens, building small tensors costs more than using them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(slots=True)
class DraftTree:
    """Draft tokens of one sequence, parents first."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    """The drafter's estimates that the target's output contains the path to each node;
    never rise along a path. Empty where unknown, and for sampled tokens: dropping one
    by its probability is biased.
    """

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, token: int, parent: int, probability: float) -> int:
        """Add a draft token after node `parent` (-1: the text); return its node."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.probabilities.append(probability)
        return len(self.tokens) - 1

    @property
    def chain(self) -> bool:
        """Whether every draft token follows the one before it."""
        return self.parents == list(range(-1, len(self.parents) - 1))

    @property
    def depths(self) -> list[int]:
        """Depth of each column: 0 for the last committed token, then of each node."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent + 1] + 1)
        return depths

    @property
    def paths(self) -> list[list[int]]:
        """Draft tokens from the text to each column: none for 0, then each path."""
        paths: list[list[int]] = [[]]
        for token, parent in zip(self.tokens, self.parents, strict=True):
            paths.append([*paths[parent + 1], token])
        return paths

    def children_by_token(self) -> dict[int, dict[int, int]]:
        """Return node -> token -> its first child with that token; -1: the text."""
        children: dict[int, dict[int, int]] = {}
        for node, (token, parent) in enumerate(
            zip(self.tokens, self.parents, strict=True)
        ):
            children.setdefault(parent, {}).setdefault(token, node)
        return children

    def cut(self, most: int, floor: float = 0.0) -> "DraftTree":
        """Return the tree of the `most` likeliest nodes above `floor`, best first."""
        return self.pruned(self.best(most, floor))

    def first_chain(self) -> list[int]:
        """Return the nodes of the chain of first children."""
        chain: list[int] = []
        for node, parent in enumerate(self.parents):
            if parent == (chain[-1] if chain else -1):
                chain.append(node)
        return chain

    def as_chain(self) -> "DraftTree":
        """Return the chain of first children as a tree."""
        return self.pruned(self.first_chain())

    def best(self, most: int, floor: float = 0.0) -> list[int]:
        """Return the `most` likeliest nodes above `floor`; parents before children."""
        # stable: parents stay first
        order = sorted(range(len(self.tokens)), key=lambda n: -self.probabilities[n])
        return [node for node in order[:most] if self.probabilities[node] > floor]

    def pruned(self, nodes: Sequence[int]) -> "DraftTree":
        """Return the tree of these nodes, in that order."""
        position = {-1: -1} | {node: index for index, node in enumerate(nodes)}
        tokens = [self.tokens[node] for node in nodes]
        parents = [position[self.parents[node]] for node in nodes]
        probabilities: list[float] = []
        if self.probabilities:
            probabilities = [self.probabilities[node] for node in nodes]
        return DraftTree(tokens, parents, probabilities)


class Draft:
    """Draft tokens of one round, a tree (or chain) for each sequence. Immutable."""

    def __init__(
        self,
        trees: Iterable[DraftTree],
        probs: Float[Tensor, "batch node vocab"] | None = None,
        device: torch.device | None = None,
    ) -> None:
        """`device`: where tensors are created; `probs` must be on it already."""
        self.trees = tuple(trees)
        self.probs = probs
        """The distribution q of sampled tokens; None: chosen or coupled ones."""
        self.device = device
        """Where tensors are created."""
        self.chain: bool = all(tree.chain for tree in self.trees)
        """Whether every node follows the one before it."""

    @staticmethod
    def padded(
        tokens: Int[Tensor, "batch node"],
        parents: Int[Tensor, "batch node"],
        count: Int[Tensor, "batch"],
        probs: Float[Tensor, "batch node vocab"] | None = None,
        *,
        chain: bool = True,
    ) -> "Draft":
        """Return a draft made from padded tensors, on any device."""
        return _PaddedDraft(tokens, parents, count, probs, chain=chain)

    @cached_property
    def tokens(self) -> Int[Tensor, "batch node"]:
        """Token ids, parents before children, padded."""
        return _table([tree.tokens for tree in self.trees], self.nodes, 0, self.device)

    @cached_property
    def parents(self) -> Int[Tensor, "batch node"]:
        """Parent node of each draft token; -1 = the last committed token."""
        if self.chain:
            return torch.arange(-1, self.nodes - 1, device=self.device).expand(
                len(self.trees), self.nodes
            )
        return _table(
            [tree.parents for tree in self.trees], self.nodes, -1, self.device
        )

    @cached_property
    def count(self) -> Int[Tensor, "batch"]:
        """Nodes in use; 0 = no draft."""
        return torch.tensor(
            [len(tree) for tree in self.trees], dtype=torch.int64, device=self.device
        )

    @property
    def weighed(self) -> bool:
        """Whether every draft token has a probability."""
        return all(len(tree.probabilities) == len(tree) for tree in self.trees)

    @cached_property
    def nodes(self) -> int:
        """Width of the padding."""
        return max(map(len, self.trees), default=0)

    def pruned(self, nodes: Sequence[Sequence[int]]) -> "Draft":
        """Return the draft of these nodes of each tree, in order; parents first."""
        trees = [
            tree.pruned(kept) for tree, kept in zip(self.trees, nodes, strict=True)
        ]
        if self.probs is None:
            return Draft(trees, device=self.device)
        probs = self.probs.new_zeros(
            len(trees), max(map(len, trees), default=0), self.probs.shape[-1]
        )
        for row, order in enumerate(nodes):
            probs[row, : len(order)] = self.probs[row, order]
        return Draft(trees, probs, self.device)

    def within(self, depths: Sequence[int]) -> "Draft":
        """Return the draft without the nodes of each tree that are deeper than its
        entry in `depths`.

        Unbiased under every rule, also for sampled tokens: depth does not depend on the
        token.
        """
        if all(
            len(tree) <= most for tree, most in zip(self.trees, depths, strict=True)
        ):
            return self
        return self.pruned(
            [
                [node for node, depth in enumerate(tree.depths[1:]) if depth <= most]
                for tree, most in zip(self.trees, depths, strict=True)
            ]
        )

    def copy(self, device: torch.device) -> "Draft":
        """Return a copy with its own lists, and its tensors on `device`."""
        trees = [
            DraftTree([*tree.tokens], [*tree.parents], [*tree.probabilities])
            for tree in self.trees
        ]
        width = max(map(len, trees), default=0)
        return Draft(
            trees,
            None if self.probs is None else self.probs[:, :width].to(device),
            device,
        )


class _PaddedDraft(Draft):
    """A draft that is given as tensors; its trees are read from them on first use."""

    def __init__(
        self,
        tokens: Int[Tensor, "batch node"],
        parents: Int[Tensor, "batch node"],
        count: Int[Tensor, "batch"],
        probs: Float[Tensor, "batch node vocab"] | None,
        *,
        chain: bool,
    ) -> None:
        self.tokens = tokens
        self.parents = parents
        self.count = count
        self.probs = probs
        self.chain = chain
        self.nodes = tokens.shape[1]
        self.device = tokens.device

    @cached_property
    def trees(self) -> tuple[DraftTree, ...]:
        """The draft tokens in use. Raises ValueError if tensor shapes do not match."""
        shape, count = tuple(self.tokens.shape), self.count.tolist()
        if tuple(self.parents.shape) != shape or len(count) != shape[0]:
            raise ValueError(
                "cannot read this draft: tokens and parents must have one shape with "
                f"{len(count)} rows, as count has"
            )
        if any(not 0 <= used <= shape[1] for used in count):
            raise ValueError(
                f"cannot read this draft: its width {shape[1]} cannot hold {count} "
                "tokens"
            )
        rows = zip(self.tokens.tolist(), self.parents.tolist(), count, strict=True)
        return tuple(
            DraftTree(tokens[:used], parents[:used]) for tokens, parents, used in rows
        )


class Verdict:
    """Accepted nodes of each sequence, and the target's token after them. Immutable."""

    def __init__(
        self, kept: Sequence[Sequence[int]], added: Sequence[int], depth: int
    ) -> None:
        """`depth`: the width of `path`."""
        self.kept = kept
        self.added = added
        self._depth = depth

    @staticmethod
    def padded(
        path: Int[Tensor, "batch depth"],
        accepted: Int[Tensor, "batch"],
        bonus: Int[Tensor, "batch"],
    ) -> "Verdict":
        """Return a verdict made from padded tensors, on any device."""
        paths = zip(path.tolist(), accepted.tolist(), strict=True)
        rows = [nodes[:count] for nodes, count in paths]
        return Verdict(rows, bonus.tolist(), path.shape[1])

    @cached_property
    def path(self) -> Int[Tensor, "batch depth"]:
        """Accepted nodes from the root on, padded with -1."""
        return _table(self.kept, self._depth, -1)

    @cached_property
    def accepted(self) -> Int[Tensor, "batch"]:
        """Number of accepted nodes; 0 <= accepted <= depth."""
        return torch.tensor([len(nodes) for nodes in self.kept], dtype=torch.int64)

    @cached_property
    def bonus(self) -> Int[Tensor, "batch"]:
        """The target's next token, as a tensor."""
        return torch.tensor(self.added, dtype=torch.int64)

    def said(self, draft: Draft) -> list[list[int]]:
        """Return the emitted tokens: the accepted draft tokens, then the target's."""
        emitted: list[list[int]] = []
        for tree, nodes, token in zip(draft.trees, self.kept, self.added, strict=True):
            emitted.append([*(tree.tokens[node] for node in nodes), token])
        return emitted


def _table(
    rows: Sequence[Sequence[int]],
    width: int,
    fill: int,
    device: torch.device | None = None,
) -> Int[Tensor, "row width"]:
    """Return rows padded with `fill` at the end."""
    padded = [[*row, *[fill] * (width - len(row))] for row in rows]
    table = torch.tensor(padded, dtype=torch.int64, device=device)
    return table.reshape(len(rows), width)
