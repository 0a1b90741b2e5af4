"""What a round guesses and what becomes of it, as lists and as tensors.

Lists are how guesses are made, sent to a model and kept, one after another; padded tensors are how a rule judges many
at once. Either is made of the other when it is first asked for: for a handful of guesses a dozen small tensors take
longer than everything that is done with them.

Knows tokens; knows nothing about models, rules or methods.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as List
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(slots=True)
class Tree:
    """Guesses of one sequence, parents before children; `chances` as in `Draft`, none at all where they are unknown."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, token: int, parent: int, chance: float) -> int:
        """Add a guess after node `parent` (-1: the last committed token). Returns its node."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.chances.append(chance)
        return len(self.tokens) - 1

    @property
    def chain(self) -> bool:
        """Every guess follows the one before it."""
        return self.parents == list(range(-1, len(self.parents) - 1))

    @property
    def depths(self) -> list[int]:
        """Distance of each draw from the last committed token: 0 after that, 1 after its first guess."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent + 1] + 1)
        return depths

    @property
    def paths(self) -> list[list[int]]:
        """The guesses between the last committed token and each draw: none, then those up to each guess, itself too."""
        paths: list[list[int]] = [[]]
        for token, parent in zip(self.tokens, self.parents, strict=True):
            paths.append([*paths[parent + 1], token])
        return paths

    def offspring(self) -> dict[int, dict[int, int]]:
        """node -> token -> the first guess of that token which follows it; -1 stands for the last committed token."""
        found: dict[int, dict[int, int]] = {}
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            found.setdefault(parent, {}).setdefault(token, node)
        return found

    def cut(self, most: int, floor: float = 0.0) -> Tree:
        """The tree of its `most` likeliest guesses above `floor`, likeliest first."""
        return self.pruned(self.best(most, floor))

    def trunk(self) -> list[int]:
        """The nodes of the chain of first children."""
        chain: list[int] = []
        for node, parent in enumerate(self.parents):
            if parent == (chain[-1] if chain else -1):
                chain.append(node)
        return chain

    def straight(self) -> Tree:
        """The chain of its first children."""
        return self.pruned(self.trunk())

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
            [self.chances[node] for node in nodes] if self.chances else [],
        )


class Draft:
    """Guesses for one round: a tree for each sequence; a chain is a tree with one branch. Never changes."""

    def __init__(
        self,
        trees: Iterable[Tree],
        probs: Float[Tensor, "batch node vocab"] | None = None,
        device: torch.device | None = None,
    ) -> None:
        """`device` is where tensors are made; `probs`, where there are any, are there already."""
        self.trees = tuple(trees)
        self.probs = probs
        """The law each token was drawn from. None = chosen, or foreseen with the target's own noise."""
        self._device = device
        self.chain: bool = all(tree.chain for tree in self.trees)
        """Every node follows the one before it."""

    @classmethod
    def padded(
        cls,
        tokens: Int[Tensor, "batch node"],
        parents: Int[Tensor, "batch node"],
        count: Int[Tensor, "batch"],
        probs: Float[Tensor, "batch node vocab"] | None = None,
        *,
        chain: bool = True,
        chances: Float[Tensor, "batch node"] | None = None,
    ) -> Draft:
        """The same from tensors, on any device."""
        draft = cls.__new__(cls)
        vars(draft).update(tokens=tokens, parents=parents, count=count, probs=probs, chain=chain, chances=chances)
        draft._device = tokens.device
        return draft

    @cached_property
    def trees(self) -> tuple[Tree, ...]:
        """The guesses in use. Raises ValueError where the tensors do not fit together."""
        shape, count = tuple(self.tokens.shape), self.count.tolist()
        if tuple(self.parents.shape) != shape or len(count) != shape[0]:
            raise ValueError(
                f"tokens and parents must be of one shape with {len(count)} rows, and count of that length"
            )
        if any(not 0 <= used <= shape[1] for used in count):
            raise ValueError(f"a draft of width {shape[1]} cannot hold {count} guesses")
        chances = [[] for _ in count] if self.chances is None else self.chances.tolist()
        rows = zip(self.tokens.tolist(), self.parents.tolist(), chances, count, strict=True)
        return tuple(Tree(tokens[:used], parents[:used], odds[:used]) for tokens, parents, odds, used in rows)

    @cached_property
    def tokens(self) -> Int[Tensor, "batch node"]:
        """Parents before children, padded."""
        return _table([tree.tokens for tree in self.trees], self.nodes, 0, self._device)

    @cached_property
    def parents(self) -> Int[Tensor, "batch node"]:
        """Index of the node each guess follows; -1 = the last committed token."""
        if self.chain:
            return torch.arange(-1, self.nodes - 1, device=self._device).expand(len(self.trees), self.nodes)
        return _table([tree.parents for tree in self.trees], self.nodes, -1, self._device)

    @cached_property
    def count(self) -> Int[Tensor, "batch"]:
        """Nodes in use; 0 = nothing to say."""
        return torch.tensor([len(tree) for tree in self.trees], dtype=torch.int64, device=self._device)

    @property
    def weighed(self) -> bool:
        """It says how likely its guesses are."""
        return all(len(tree.chances) == len(tree) for tree in self.trees)

    @cached_property
    def chances(self) -> Float[Tensor, "batch node"] | None:
        """The chance, as well as the drafter knows, that the target's text goes through each guess; never rising.

        None where it does not know. Never for drawn guesses (`probs`): to leave one out for its own chance is biased.
        """
        if not self.weighed:
            return None
        return _table([tree.chances for tree in self.trees], self.nodes, 0.0, self._device)

    @cached_property
    def nodes(self) -> int:
        """Width of the padding."""
        return self.tokens.shape[1] if "tokens" in vars(self) else max(map(len, self.trees), default=0)

    def pruned(self, nodes: List[List[int]]) -> Draft:
        """The draft of these nodes of each tree, in that order; each after its parent."""
        trees = [tree.pruned(kept) for tree, kept in zip(self.trees, nodes, strict=True)]
        if self.probs is None:
            return Draft(trees, device=self._device)
        probs = self.probs.new_zeros(len(trees), max(map(len, trees), default=0), self.probs.shape[-1])
        for row, kept in enumerate(nodes):
            probs[row, : len(kept)] = self.probs[row, kept]
        return Draft(trees, probs, self._device)

    def within(self, depths: List[int]) -> Draft:
        """The draft without the guesses of each tree that lie deeper than so many.

        Drawn guesses may be cut in this way under every rule: how deep a guess lies says nothing of what was drawn.
        """
        if all(len(tree) <= most for tree, most in zip(self.trees, depths, strict=True)):
            return self
        return self.pruned(
            [
                [node for node, depth in enumerate(tree.depths[1:]) if depth <= most]
                for tree, most in zip(self.trees, depths, strict=True)
            ]
        )

    def copy(self, device: torch.device) -> Draft:
        """The same in lists of its own, with its tensors on a device."""
        trees = [Tree([*tree.tokens], [*tree.parents], [*tree.chances]) for tree in self.trees]
        width = max(map(len, trees), default=0)
        return Draft(trees, None if self.probs is None else self.probs[:, :width].to(device), device)


class Verdict:
    """Which guesses stay, and the token the target adds after them. Never changes."""

    def __init__(self, kept: List[List[int]], added: List[int], depth: int) -> None:
        """`depth` is the width of `path`."""
        self.kept, self.added, self._depth = kept, added, depth

    @classmethod
    def padded(
        cls, path: Int[Tensor, "batch depth"], accepted: Int[Tensor, "batch"], bonus: Int[Tensor, "batch"]
    ) -> Verdict:
        """The same from tensors, on any device."""
        verdict = cls.__new__(cls)
        vars(verdict).update(path=path, accepted=accepted, bonus=bonus)
        return verdict

    @cached_property
    def kept(self) -> List[List[int]]:
        """Accepted nodes of each sequence, from the root on."""
        return [path[:count] for path, count in zip(self.path.tolist(), self.accepted.tolist(), strict=True)]

    @cached_property
    def added(self) -> List[int]:
        """The target's own next token of each sequence."""
        return list(self.bonus.tolist())

    @cached_property
    def path(self) -> Int[Tensor, "batch depth"]:
        """Accepted nodes from the root on, padded with -1."""
        return _table(self.kept, self._depth, -1)

    @cached_property
    def accepted(self) -> Int[Tensor, "batch"]:
        """How many; 0 <= accepted <= depth."""
        return torch.tensor([len(nodes) for nodes in self.kept], dtype=torch.int64)

    @cached_property
    def bonus(self) -> Int[Tensor, "batch"]:
        """The target's own next token."""
        return torch.tensor(self.added, dtype=torch.int64)

    def said(self, draft: Draft) -> list[list[int]]:
        """What each sequence goes on with: the guesses that stay, and the target's own token."""
        rows = zip(draft.trees, self.kept, self.added, strict=True)
        return [[*(tree.tokens[node] for node in nodes), token] for tree, nodes, token in rows]


def _table(
    rows: List[List[int]] | List[List[float]], width: int, fill: float, device: torch.device | None = None
) -> Tensor:
    """Rows of numbers, padded at the end; a whole number to fill with makes whole numbers of all."""
    kind = torch.int64 if isinstance(fill, int) else torch.float32
    padded = [[*row, *[fill] * (width - len(row))] for row in rows]
    return torch.tensor(padded, dtype=kind, device=device).reshape(len(rows), width)
