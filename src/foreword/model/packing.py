"""Many sequences side by side in one forward, with their keys and values in one pool: where each row goes.

Knows reads, rows and positions; knows nothing about what reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from foreword.errors import ModelError
from foreword.model.cache import KVPool
from foreword.model.plan import Plan, Read, Span
from foreword.native.openmp import all_threads

HEAVY = 64 * 2**20
"""Bytes of weights from which on a part of a model is worth all of torch's threads, in whatever precision it comes.

They spin on after their work, on the cores that the target needs next: with a head of 40 MB each round took 5 ms more.
"""


def threads_for(part: nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """What to be inside of while a part computes. The threads of a small one would be in the way of its target."""
    return all_threads if sum(weight.nbytes for weight in part.parameters()) > HEAVY else nullcontext


@dataclass(frozen=True, slots=True)
class Packed:
    """The rows of one forward."""

    tokens: list[int]
    positions: list[int]
    kept: list[int]
    """Rows whose logits are wanted."""
    plan: Plan


class Packing:
    """Gives every sequence a run of rows in the pool, and lays what is read out as one row of tokens."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = KVPool()

    def open(self, id: int, capacity: int) -> None:
        """Make room for a sequence of at most `capacity` tokens, guesses included."""
        self._pool.open(id, capacity)

    def close(self, id: int) -> None:
        """Forget a sequence. Unknown ids are ignored."""
        self._pool.close(id)

    def move(self, id: int, source: list[int], start: int) -> None:
        """Make the keys of an accepted branch contiguous: position source[i] moves to start + i."""
        base = self._pool[id].start
        pairs = [(base + held, base + start + i) for i, held in enumerate(source) if held != start + i]
        if pairs:
            moves = torch.tensor(pairs, device=self._device)
            self._pool.move(moves[:, 0], moves[:, 1])

    def _pack(self, reads: List[Read]) -> Packed:
        """Raises ModelError when a sequence outgrows its room."""
        spans = self._spans(reads)
        rows: list[int] = []
        for span in spans:
            rows += range(span.extent.start + span.read.start, span.extent.start + span.length)
        kept = [row for span in spans for row in range(span.stop - span.read.keep, span.stop)]
        tokens = [token for read in reads for token in read.tokens]
        positions = [read.past + depth for read in reads for depth in read.depths]
        return Packed(tokens, positions, kept, Plan(self._pool, spans, torch.tensor(rows, device=self._device)))

    def _spans(self, reads: List[Read]) -> tuple[Span, ...]:
        """Raises ModelError when a sequence outgrows its room."""
        spans: list[Span] = []
        for read in reads:
            extent, start = self._pool[read.id], spans[-1].stop if spans else 0
            if read.start + len(read.tokens) > extent.capacity:
                raise ModelError(f"sequence {read.id} outgrew its room of {extent.capacity} tokens")
            spans.append(Span(start, start + len(read.tokens), extent, read))
        return tuple(spans)
