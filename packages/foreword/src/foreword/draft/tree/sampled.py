"""Draft tokens sampled from a drafter's distribution, in trees or chains."""

from collections import defaultdict
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.draft.tree.shapes import Shape
from foreword.sampling.draw import probs
from foreword.sampling.logits import weights
from foreword.types import Batch, Draft, DraftTree


class _Row:
    """Tree of one request: its shape, and the tokens sampled for its nodes."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.tokens: dict[int, int] = {}
        self.distributions: dict[int, Tensor] = {}
        self.children: dict[int, list[int]] = defaultdict(list)
        self.lanes: list[int] = []
        """Index of each node within its depth, from 0: 0 all along a chain."""
        depths: dict[int, int] = {-1: -1}
        width: dict[int, int] = defaultdict(int)
        for node, parent in enumerate(shape):
            self.children[parent].append(node)
            depth = depths[node] = depths[parent] + 1
            self.lanes.append(width[depth])
            width[depth] += 1

    def path(self, node: int) -> list[int]:
        return [] if node < 0 else [*self.path(self.shape[node]), self.tokens[node]]


class SampledTree:
    """Sampler of draft tokens, node by node, for each request of a batch: the only
    place that samples them.

    A drafter's logits go through the same processing as the target's, with the path
    drafted so far.

    The number of children must not depend on the samples: dropping a draft token for
    its value is biased. For rules with distinct lists, the children are the tokens of
    the largest log q + G, where G is one row of Gumbel noise. This samples without
    replacement, in this order (Kool, van Hoof, Welling 2019, arXiv 1903.06059). Under a
    rule that shares its noise, G is the target's. At temperature 0 the likeliest tokens
    are chosen.
    """

    def __init__(self, batch: Batch, shapes: Sequence[Shape]) -> None:
        """Take `shapes[row]`, the parent of each node, parents first, as `full_tree`
        and `sequoia` return.

        If the round verifies chains only, just the first child of each node is sampled.
        """
        self._batch = batch
        self._lists = batch.draws.lists if batch.trees else "one"
        self._rows = [_Row(shape) for shape in shapes]

    def draw(
        self,
        row: int,
        node: int,
        logits: Float[Tensor, "vocab"],
    ) -> list[int]:
        """Sample the children of a node (-1: the last committed token) of request
        `row` from the raw logits after it.

        Returns the nodes that hold a token now: fewer than in the shape if the
        distribution allows fewer. None if the request's processors fail or forbid every
        token, or if the budget ends the chain. The budget sees only the distribution,
        before anything is sampled, so no draft token is dropped for its value.
        """
        request, tree = self._batch.requests[row], self._rows[row]
        children = tree.children[node][: 1 if self._lists == "one" else None]
        try:
            distribution = weights(logits[None], request, [tree.path(node)])[0]
        except Exception:  # noqa: BLE001 - a user's processor
            return []
        if self._batch.stops is not None and self._batch.stops(
            request, len(tree.path(node)), distribution
        ):
            return []
        tokens = self._tokens(row, distribution, children)
        children = children[: len(tokens)]
        tree.tokens |= zip(children, tokens.tolist(), strict=True)
        if self._batch.draws.wants_probs:
            # Chosen siblings each have a one-hot distribution: none could have been
            # another token.
            one_hot = distribution.new_zeros(len(tokens), len(distribution)).scatter_(
                1, tokens[:, None], 1.0
            )
            distributions = (
                one_hot
                if request.params.greedy
                else probs(distribution[None]).expand(len(tokens), -1)
            )
            tree.distributions |= zip(children, distributions, strict=True)
        return children

    def branches(self, row: int, node: int) -> bool:
        """Return whether this node has children to sample."""
        return bool(self._rows[row].children.get(node))

    def tree(self, row: int, nodes: Sequence[int]) -> DraftTree:
        """Return the tree of these nodes of request `row`, each after its parent."""
        tree = self._rows[row]
        index = {-1: -1} | {node: at for at, node in enumerate(nodes)}
        return DraftTree(
            [tree.tokens[node] for node in nodes],
            [index[tree.shape[node]] for node in nodes],
        )

    def draft(self) -> Draft:
        """Return the sampled nodes of all trees, with padded distributions."""
        trees = [
            self.tree(row, sorted(tree.tokens)) for row, tree in enumerate(self._rows)
        ]
        distributions = [
            [tree.distributions[node] for node in sorted(tree.distributions)]
            for tree in self._rows
        ]
        if not any(distributions):
            return Draft(trees)
        probs = torch.zeros(
            len(trees),
            max(map(len, distributions)),
            len(next(filter(None, distributions))[0]),
            dtype=torch.float32,
        )
        for row, drawn in enumerate(distributions):
            for node, distribution in enumerate(drawn):
                probs[row, node] = distribution
        return Draft(trees, probs)

    def _tokens(
        self,
        row: int,
        distribution: Float[Tensor, "vocab"],
        children: Sequence[int],
    ) -> Int[Tensor, "child"]:
        """Return the token of each child, fewer if fewer are allowed."""
        allowed = int((distribution > -torch.inf).sum())
        noisy = distribution
        if children:
            noisy = self._noisy(row, distribution, children[0])
        return noisy.topk(min(len(children), allowed)).indices

    def _noisy(
        self, row: int, distribution: Float[Tensor, "vocab"], child: int
    ) -> Float[Tensor, "vocab"]:
        tree = self._rows[row]
        path, lane = tree.path(tree.shape[child]), tree.lanes[child]
        noise = self._batch.draws.drafting(self._batch.requests[row], path, lane)
        return distribution if noise is None else distribution + noise.to(distribution)
