"""Chains of draft tokens in one piece of work on the device: the forwards of a draft
model, and the draws between them, on tensors at fixed addresses.

The host waits once for all levels, not after each. The tree is the chain with the
likeliest siblings of its tokens, which take no forward. The plain definition is
`CoupledTree` (draft/tree/coupled.py), where each level expands its likeliest node.
"""

import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.model.executors.cuda.backend import CudaGraphBackend, Output, Shape, on
from foreword.model.executors.cuda.launch import (
    CHAIN_ROWS,
    LENGTH,
    PLACE,
    POSITION,
    SPLIT,
    TOKEN,
)
from foreword.model.executors.cuda.table import row_table
from foreword.model.kv.reads import Read, Span
from foreword.sampling.noise import philox
from foreword.types.draft import DraftTree
from foreword.types.growth import Children, GrownTree, TreeRequest

SIZES = (8, 4, 2, 1)
"""Levels of the recorded drafts; other numbers are rounded down."""
_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Multipliers of `extend` (sampling/noise.py)."""


def extend_on_device(key: Int[Tensor, "..."], token: Int[Tensor, "..."]) -> Tensor:
    """Return `extend` (sampling/noise.py) of keys held as the same 64 bits in Int64."""
    first, second, third = (factor - 2**64 for factor in _MULTIPLIERS)
    word = (key + token + 1) * first
    word = (word ^ _shifted(word, 30)) * second
    word = (word ^ _shifted(word, 27)) * third
    return word ^ _shifted(word, 31)


def _shifted(word: Tensor, bits: int) -> Tensor:
    """Return a shift to the right that brings zeros: Int64 brings the sign bit."""
    return (word >> bits) & ((1 << (64 - bits)) - 1)


def gumbel_on_device(keys: Int[Tensor, "rows"], vocab: int) -> Float[Tensor, "rows v"]:
    """Return `gumbel` (sampling/noise.py) of the target's stream."""
    quads = torch.arange((vocab + 3) // 4, device=keys.device)[None]
    zero = torch.zeros_like(keys)[:, None]
    halves = keys[:, None] & _MASK, (keys[:, None] >> 32) & _MASK
    words = torch.stack(philox((quads, zero, zero, zero), halves), -1)
    units = words.double().add_(0.5).mul_(2.0**-32)
    noise = units.log_().neg_().log_().neg_()
    return noise.flatten(1)[:, :vocab].float()


@dataclass(frozen=True, slots=True)
class ChainShape(Shape):
    """What is fixed in the recording of a chain."""

    drafted: int
    breadth: int
    """Children returned of the text and of each token, the likeliest."""
    greedy: bool


class ChainBackend(CudaGraphBackend):
    """A graph backend that drafts a chain with siblings in one replay."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._inputs: dict[int, list[Tensor]] = {}
        """By rows of a forward: the row tables of the first forward and of the next
        one; the key of the noise; the factor of the logits, and the scale."""
        self._records_chains = self._kernel

    @torch.inference_mode()
    def grow_chain(self, read: Read, ask: TreeRequest) -> GrownTree | None:
        """Run a read, then grow a chain with siblings after it; None where trees grow
        by levels: beside other texts, which share the forward of a level, and after
        long reads.
        """
        texts, count = len(self.pool._tables), len(read.tokens)
        if not self._records_chains or texts > 1 or count > self._buckets[-1]:
            return None
        drafted = next(size for size in SIZES if size <= min(ask.most, ask.deep))
        (span,) = self._spans([read], drafted)
        splits = -(-(span.length + drafted) // SPLIT)
        shape = ChainShape(
            self._bucket(count),
            self._bucket(1),
            1 << (splits - 1).bit_length(),
            (),
            drafted,
            ask.breadth,
            ask.key is None,
        )
        with on(self._device):
            self._set_inputs(shape.rows, span, ask)
            if not self._recorded(shape):
                return None
            tokens, scores = self._recordings[shape]()
            return _grown(tokens.tolist(), scores.tolist(), ask)

    def _set_inputs(self, rows: int, span: Span, ask: TreeRequest) -> None:
        following = Span(0, 1, span.table, Read(span.read.id, span.length, [0]))
        tables = [
            row_table([part], rows, self._tile, self._padding_row, self._words)
            for part in (span, following)
        ]
        key = ask.key or 0
        factor = 1.0 if ask.key is None else 1.0 / ask.temperature
        fresh = [
            torch.from_numpy(np.stack(tables)),
            torch.tensor([key - 2**64 if key >= 2**63 else key]),
            torch.tensor([factor, ask.scale]),
        ]
        if rows not in self._inputs:
            self._inputs[rows] = [part.to(self._device, copy=True) for part in fresh]
        for buffer, part in zip(self._inputs[rows], fresh, strict=True):
            buffer.copy_(part)

    def _recorded(self, shape: ChainShape) -> bool:
        """Record the work of a shape if needed; return whether that succeeded."""
        if self._recorded_for != self.pool.rows:
            self._recordings.clear()
        if shape in self._recordings:
            return True
        try:
            self._recordings[shape] = self._runner(partial(self._draft, shape))
        except RuntimeError as error:
            self._records_chains = False
            warnings.warn(
                f"cannot record drafts as a CUDA graph: {error}. They grow token by "
                "token, only slower",
                stacklevel=2,
            )
            return False
        self._recorded_for = self.pool.rows
        return True

    def _draft(self, shape: ChainShape) -> Output:
        """Return each level's best children, and their a log q + G, then their
        probabilities after the chain so far.
        """
        tables, key, numbers = self._inputs[shape.rows]
        factor, scale = numbers
        table = tables[0]
        children: list[Tensor] = []
        scores: list[Tensor] = []
        for step in range(shape.drafted):
            logits = self._work(shape, table)[0][:1].float()
            vocab = logits.shape[1]
            noise = 0.0 if shape.greedy else gumbel_on_device(key, vocab)
            values = factor * logits + noise
            best = values.topk(min(shape.breadth, vocab))
            shares = (values / scale).softmax(-1).nan_to_num(0.0)
            children.append(best.indices)
            scores.append(torch.cat([best.values, shares.gather(1, best.indices)], 1))
            token = best.indices[:, 0]
            key = extend_on_device(key, token)
            table = tables[1].clone()
            table[:1, TOKEN] = token.int()
            for column in (POSITION, PLACE, LENGTH, CHAIN_ROWS):
                table[0, column] += step
        return torch.cat(children), torch.cat(scores)


def _grown(
    children: list[list[int]], scores: list[list[float]], ask: TreeRequest
) -> GrownTree:
    """Return the best of the chain, up to a token that ends the text, and siblings."""
    tree = DraftTree()
    last, reached = -1, 1.0
    ranked: list[Children] = []
    for tokens, row in zip(children, scores, strict=True):
        breadth = len(tokens)
        ranked.append((tokens, row[:breadth]))
        likeliest = len(tree)
        for token, probability in zip(tokens, row[breadth:], strict=True):
            tree.add(token, last, reached * probability)
        last, reached = likeliest, tree.probabilities[likeliest]
        if tokens[0] in ask.ends:
            break
    best = tree.cut(ask.most, ask.floor)
    read = [tokens[0] for tokens, _ in ranked[:-1]]
    parents = list(range(-1, len(read) - 1))
    return GrownTree(
        best.tokens, best.parents, best.probabilities, read, parents, ranked
    )
