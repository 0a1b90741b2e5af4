"""Chains of draft tokens in one piece of work on the device: the forwards of a draft
model, and the draws between them, on tensors at fixed addresses.

The host waits once for all levels, not after each. The tree is the chain with the
likeliest siblings of its tokens, which take no forward. The plain definition is
`CoupledTree` (draft/tree/coupled.py), where each level expands its likeliest node.
"""

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from foreword.model.executors.cuda.backend import (
    Output,
    Runner,
    Shape,
    on,
)
from foreword.model.executors.cuda.launch import (
    CHAIN_ROWS,
    LENGTH,
    PLACE,
    POSITION,
    SPLIT,
    TOKEN,
)
from foreword.model.executors.cuda.table import row_table
from foreword.model.executors.torch.kv_pool import KVPool
from foreword.model.kv.packing import Paged
from foreword.model.kv.reads import Read, Span
from foreword.native import sampling
from foreword.sampling.noise import signed
from foreword.types.draft import DraftTree
from foreword.types.growth import Children, GrownTree, TreeRequest

SIZES = (8, 4, 2, 1)
"""Levels of the recorded drafts; other numbers are rounded down."""
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


def gumbel_on_device(key: Int[Tensor, "1"], vocab: int) -> Float[Tensor, "1 vocab"]:
    """Return `gumbel` (sampling/noise.py) of the target's stream."""
    kernel = sampling.on_gpu()
    assert kernel is not None, "the graph backend needs Triton"
    return kernel(functional.pad(key[None], (0, 0, 0, 3)), vocab)


@dataclass(frozen=True, slots=True)
class ChainShape(Shape):
    """What is fixed in the recording of a chain."""

    drafted: int
    breadth: int
    """Children returned of the text and of each token, the likeliest."""
    greedy: bool


class GrowsChains(Paged[KVPool]):
    """A base that grows a chain with siblings in one piece of work: on the device, a
    single replay.
    """

    _device: torch.device
    _runner: Runner
    _buckets: tuple[int, ...]
    _tile: int
    _words: dict[int | None, int]
    _padding_row: int
    _recordings: dict[Shape, Callable[[], Output]]
    _recorded_for: int
    _records_chains = False
    _buffers: list[Tensor]
    """The row tables of the first forward and of the next one; the key of the noise;
    the factor of the logits, and the scale; what is read beside the tokens."""

    def record_chains(
        self,
        runner: Runner,
        buckets: tuple[int, ...],
        tile: int,
        words: dict[int | None, int],
        padding_row: int,
    ) -> None:
        """Grow chains from now on; for one that has no forwards of fixed shape.

        Arguments as in `CudaGraphBackend`.
        """
        self._runner = runner
        self._buckets = buckets
        self._tile = tile
        self._words = words
        self._padding_row = padding_row
        self._recordings = {}
        self._recorded_for = 0
        self._buffers = []
        self._records_chains = True

    @abstractmethod
    def _step(
        self, shape: ChainShape, table: Int[Tensor, "rows width"], states: list[Tensor]
    ) -> tuple[Float[Tensor, "1 vocab"], list[Tensor]]:
        """Return the logits after the last token of a forward, and what the next one
        reads beside it.
        """

    @torch.inference_mode()
    def grow_chain(
        self, read: Read, ask: TreeRequest, *states: Float[Tensor, "tokens features"]
    ) -> GrownTree | None:
        """Run a read, then grow a chain with siblings after it; None where trees grow
        by levels: beside other texts, which share the forward of a level, and after
        long reads.
        """
        if not self._records_chains or len(self.pool._tables) > 1:
            return None
        rows = self._buckets[-1]
        if len(read.tokens) > rows:
            return None
        drafted = next(size for size in SIZES if size <= min(ask.most, ask.deep))
        (span,) = self._spans([read], drafted)
        splits = -(-(span.length + drafted) // SPLIT)
        shape = ChainShape(
            rows,
            rows,
            1 << (splits - 1).bit_length(),
            (),
            drafted,
            ask.breadth,
            ask.key is None,
        )
        with on(self._device):
            self._set_inputs(rows, span, ask, states)
            if not self._recorded(shape):
                return None
            tokens, scores = self._recordings[shape]()
            return _grown(tokens.tolist(), scores.tolist(), ask)

    def _set_inputs(
        self, rows: int, span: Span, ask: TreeRequest, states: Sequence[Tensor]
    ) -> None:
        following = Span(0, 1, span.table, Read(span.read.id, span.length, [0]))
        tables = [
            row_table([part], rows, self._tile, self._padding_row, self._words)
            for part in (span, following)
        ]
        factor = 1.0 if ask.key is None else 1.0 / ask.temperature
        fresh = [
            torch.from_numpy(np.stack(tables)),
            torch.tensor([signed(ask.key or 0)]),
            torch.tensor([factor, ask.scale]),
            *(functional.pad(part, (0, 0, 0, rows - len(part))) for part in states),
        ]
        if not self._buffers:
            self._buffers = [part.to(self._device, copy=True) for part in fresh]
        for buffer, part in zip(self._buffers, fresh, strict=True):
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
        tables, key, numbers, *states = self._buffers
        factor, scale = numbers
        table = tables[0]
        children: list[Tensor] = []
        scores: list[Tensor] = []
        for step in range(shape.drafted):
            logits, states = self._step(shape, table, states)
            logits = logits.float()
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
