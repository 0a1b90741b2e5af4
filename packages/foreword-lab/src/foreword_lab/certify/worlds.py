"""Two small language models, and every draft that may be made of them: chains and
trees, sampled or chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.draft.tree.shapes import full_tree
from foreword.types import Draft


@dataclass(frozen=True)
class World:
    """Two small language models without a prompt: tables of next-token distributions,
    `target[d]` of shape [vocab] * (d + 1).
    """

    target: tuple[Tensor, ...]
    drafter: tuple[Tensor, ...]

    @classmethod
    def random(cls, seed: int, vocab: int, depth: int) -> World:
        """Return distributions that depend on the whole context; the drafter half
        resembles the target.
        """
        rng = torch.Generator().manual_seed(seed)
        shapes = [(vocab,) * (d + 1) for d in range(depth + 1)]
        target = [
            torch.randn(shape, generator=rng, dtype=torch.float64) for shape in shapes
        ]
        drafter = [
            t + torch.randn(t.shape, generator=rng, dtype=torch.float64)
            for t in target[:-1]
        ]
        return cls(
            tuple(t.softmax(-1) for t in target), tuple(t.softmax(-1) for t in drafter)
        )

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return len(self.target[0])

    @property
    def depth(self) -> int:
        """Length of the longest path that is drafted."""
        return len(self.drafter)


def next_distribution(
    tables: tuple[Tensor, ...], prefix: Int[Tensor, "row length"]
) -> Float[Tensor, "row vocab"]:
    """Return the distribution of the token after each prefix."""
    table = tables[prefix.shape[1]]
    return table[tuple(prefix.T)] if prefix.shape[1] else table.expand(len(prefix), -1)


def along(
    tables: tuple[Tensor, ...], draft: Draft
) -> Float[Tensor, "row column vocab"]:
    """Return the distributions after nothing and after each node.

    All rows must have one shape.
    """
    return torch.stack(
        [
            next_distribution(tables, text(draft, column))
            for column in range(draft.nodes + 1)
        ],
        dim=1,
    )


def text(draft: Draft, column: int) -> Int[Tensor, "row length"]:
    """The tokens on the way from the root to a column, the same way in every row."""
    path, node = [], column - 1
    while node >= 0:
        path.append(node)
        node = int(draft.parents[0, node])
    return draft.tokens[:, path[::-1]]


class AllDrafts(NamedTuple):
    """Every draft that may be made, and how likely each one is."""

    draft: Draft
    likely: Float[Tensor, "row"]


Drafting = Callable[[World], AllDrafts]


def drawn_tree(*branching: int, distinct: bool) -> Drafting:
    """Return trees with so many children at each depth, sampled from the drafter's
    distribution without replacement or independently.
    """

    def drafting(world: World) -> AllDrafts:
        draft = planted(
            list(product(range(world.vocab), repeat=len(full_tree(branching)))),
            branching,
        )
        likely, distributions = torch.ones(len(draft.tokens), dtype=torch.float64), []
        for node, parent in enumerate(full_tree(branching)):
            distribution = next_distribution(world.drafter, text(draft, parent + 1))
            distributions.append(distribution)
            free = distribution.clone()
            if distinct:
                free.scatter_(
                    1,
                    draft.tokens[
                        :, [n for n in range(node) if draft.parents[0, n] == parent]
                    ],
                    0.0,
                )
            likely *= (free / free.sum(dim=1, keepdim=True)).gather(
                1, draft.tokens[:, node, None]
            )[:, 0]
        draft = Draft.padded(
            draft.tokens,
            draft.parents,
            draft.count,
            torch.stack(distributions, dim=1),
            chain=draft.chain,
        )
        return AllDrafts(repeat(draft, likely.nonzero()[:, 0]), likely[likely > 0])

    return drafting


def chosen_tree(*branching: int) -> Drafting:
    """The drafter's likeliest tokens after each text: one tree, for certain."""

    def drafting(world: World) -> AllDrafts:
        draft = planted([[0] * len(full_tree(branching))], branching)
        for node, parent in enumerate(full_tree(branching)):
            rank = int((draft.parents[0, :node] == parent).sum())
            draft.tokens[:, node] = next_distribution(
                world.drafter, text(draft, parent + 1)
            ).argsort(descending=True)[:, rank]
        return AllDrafts(draft, torch.ones(1, dtype=torch.float64))

    return drafting


def drawn(world: World) -> AllDrafts:
    """Return chains whose tokens are sampled from the drafter's distribution."""
    return drawn_tree(*[1] * world.depth, distinct=True)(world)


def chosen(world: World) -> AllDrafts:
    """The chain of the drafter's likeliest tokens."""
    return chosen_tree(*[1] * world.depth)(world)


def planted(
    tokens: list[tuple[int, ...]] | list[list[int]], branching: tuple[int, ...]
) -> Draft:
    """Return chosen draft tokens in trees of one shape."""
    parents, rows = torch.tensor(full_tree(branching)), len(tokens)
    return Draft.padded(
        tokens=torch.tensor(tokens).reshape(rows, len(parents)),
        parents=parents.expand(rows, -1),
        count=torch.full((rows,), len(parents)),
        chain=all(children == 1 for children in branching),
    )


def chain(
    tokens: Int[Tensor, "row depth"], probs: Float[Tensor, "row depth vocab"] | None
) -> Draft:
    """A draft of full-length chains."""
    rows, depth = tokens.shape
    parents = torch.arange(-1, depth - 1).expand(rows, -1)
    return Draft.padded(
        tokens=tokens, parents=parents, count=torch.full((rows,), depth), probs=probs
    )


def changed(draft: Draft, **to: Any) -> Draft:
    """The draft with other tensors in some places."""
    names = ("tokens", "parents", "count", "probs", "chain")
    return Draft.padded(**{name: getattr(draft, name) for name in names} | to)


def repeat(draft: Draft, index: Int[Tensor, "row"]) -> Draft:
    """The rows of a draft named by index."""
    probs = None if draft.probs is None else draft.probs[index]
    return Draft.padded(
        draft.tokens[index],
        draft.parents[index],
        draft.count[index],
        probs,
        chain=draft.chain,
    )
