"""Draws guesses from a drafter's law, in trees whose shape is decided beforehand; a chain is one of them.

Knows batches, shapes and laws; knows nothing about where the logits come from.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as List

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.draft.static import Shape
from foreword.sampling import probs, weights
from foreword.types import Batch, Draft, Tree


class _Row:
    """The tree of one sequence: where its nodes are, and what was drawn for them."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.tokens: dict[int, int] = {}
        self.laws: dict[int, Tensor] = {}
        self.children: dict[int, list[int]] = defaultdict(list)
        self.places: list[tuple[int, int]] = []
        """Depth of each node, 0 for the first, and how many of that depth come before it: 0 all along a chain."""
        width: dict[int, int] = defaultdict(int)
        for node, parent in enumerate(shape):
            self.children[parent].append(node)
            depth = 0 if parent < 0 else self.places[parent][0] + 1
            self.places.append((depth, width[depth]))
            width[depth] += 1

    def path(self, node: int) -> list[int]:
        return [] if node < 0 else [*self.path(self.shape[node]), self.tokens[node]]


class DrawnTree:
    """Draws the children of one node after another, for each sequence of a batch: the only place that samples a guess.

    A drafter's logits go through the same processing as the target's, with the path drafted so far.

    How many there are may not depend on what is drawn: to leave out a guess for what it turned out to be is biased.
    For a rule that wants distinct lists, the children of a node are the tokens of the largest log q + G, G being one
    row of Gumbel noise: that draws them without replacement, in this order (Kool, van Hoof, Welling 2019, arXiv
    1903.06059). For one that wants independent lists each child is drawn with a row of its own. Under a rule that
    shares its noise, G is the target's. At temperature 0 the likeliest tokens are chosen.
    """

    def __init__(self, batch: Batch, shapes: List[Shape]) -> None:
        """`shapes[row]` = the parent of each node, parents first, as `spread` and `sequoia` make them.

        Where the round judges chains only, the first child of a node is the only one that is drawn.
        """
        self._batch = batch
        self._lists = batch.draws.lists if batch.trees else "one"
        self._rows = [_Row(shape) for shape in shapes]

    def draw(self, row: int, node: int, logits: Float[Tensor, "vocab"]) -> list[int]:
        """Draw the children of a node (-1: the last committed token) of sequence `row` from the raw logits after it.

        Returns the nodes that hold a token now: fewer than the shape has where the law allows fewer, none where the
        request's own processors fail or forbid every token, or where the chain is to end for what the law is like:
        that is known before anything is drawn from it, so no guess goes for what it turned out to be.
        """
        sequence, tree = self._batch.sequences[row], self._rows[row]
        children = tree.children[node][: 1 if self._lists == "one" else None]
        try:
            law = weights(logits[None], sequence, [tree.path(node)])[0]
        except Exception:  # noqa: BLE001 - a processor is not ours
            return []
        if self._batch.stops is not None and self._batch.stops(sequence, len(tree.path(node)), law):
            return []
        tokens = self._tokens(row, law, children)
        children = children[: len(tokens)]
        tree.tokens |= zip(children, tokens.tolist(), strict=True)
        if self._batch.draws.wants_probs:
            # Chosen siblings have a law each: none of them could have been another token.
            certain = torch.zeros(len(tokens), len(law), device=law.device).scatter_(1, tokens[:, None], 1.0)
            laws = certain if sequence.params.greedy else probs(law[None]).expand(len(tokens), -1)
            tree.laws |= zip(children, laws, strict=True)
        return children

    def path(self, row: int, node: int) -> list[int]:
        """The guesses of sequence `row` from the last committed token up to a node that is drawn."""
        return self._rows[row].path(node)

    def branches(self, row: int, node: int) -> bool:
        """Children of this node are to be drawn."""
        return bool(self._rows[row].children.get(node))

    def tree(self, row: int, nodes: List[int]) -> Tree:
        """These nodes of sequence `row`, drawn already, in this order: each after its parent."""
        return _planted(self._rows[row], nodes)

    def draft(self) -> Draft:
        """All trees, without the nodes that were not drawn, padded."""
        trees = [_planted(tree, sorted(tree.tokens)) for tree in self._rows]
        laws = [[tree.laws[node] for node in sorted(tree.laws)] for tree in self._rows]
        if not any(laws):
            return Draft(trees)
        probs = torch.zeros(len(trees), max(map(len, laws)), len(next(filter(None, laws))[0]))
        for row, drawn in enumerate(laws):
            for place, law in enumerate(drawn):
                probs[row, place] = law
        return Draft(trees, probs)

    def _tokens(self, row: int, law: Float[Tensor, "vocab"], children: List[int]) -> Int[Tensor, "child"]:
        """The token of each child, fewer where fewer are allowed."""
        if self._lists == "independent" and not self._batch.sequences[row].params.greedy:
            drawn = [self._noisy(row, law, child).argmax() for child in children]
            return torch.stack(drawn) if drawn else torch.zeros(0, dtype=torch.int64, device=law.device)
        allowed = int((law > -torch.inf).sum())
        noisy = self._noisy(row, law, children[0]) if children else law
        return noisy.topk(min(len(children), allowed)).indices

    def _noisy(self, row: int, law: Float[Tensor, "vocab"], child: int) -> Float[Tensor, "vocab"]:
        depth, lane = self._rows[row].places[child]
        noise = self._batch.draws.drafting(self._batch.sequences[row], depth, lane)
        return law if noise is None else law + noise


def _planted(tree: _Row, nodes: List[int]) -> Tree:
    place = {-1: -1} | {node: at for at, node in enumerate(nodes)}
    return Tree([tree.tokens[node] for node in nodes], [place[tree.shape[node]] for node in nodes])
