"""Images of sequences in the C forward: rows in place of embeddings, their angles, and
the keys they attend to.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.errors import InvalidRequest
from foreword.model.executors.native.angles import Rotary
from foreword.model.executors.native.executor import NativeExecutor
from foreword.model.executors.native.memories import NativeMemory
from foreword.model.kv.reads import Read, Span
from foreword.model.vision.memory import ImageMemory
from foreword.model.vision.rows import ImageRows
from foreword.native import forward

EMBEDDINGS = "inputs_embeds"
ADDRESS = 8
"""Bytes of a pointer, and of an integer in the arrays of C."""


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """The images of one sequence as the C code reads them."""

    images: ImageRows
    layers: Sequence[Float[Tensor, "rows hidden"]]
    """States that replace the embeddings of image tokens, then the residual added
    before each later layer (DeepStack).
    """
    angles: Mapping[Rotary, tuple[Tensor, ...]]
    """Angles of the same rows; empty where positions count tokens."""
    positions: Sequence[int]
    """Positions of the prompt's text, where they do not count tokens."""
    reach: Mapping[bool, Int[Tensor, "tokens 2"]]
    """Key range [start, end) of each prompt token, for layers without and with a
    sliding window.
    """

    shift: int
    """Position of a token after the prompt, minus its index in the text."""

    def within(self, read: Read) -> range:
        """Return the tokens of a read that are between the first placeholder and the
        last.
        """
        start = max(read.start, self.images.start)
        stop = min(read.start + len(read.tokens), self.images.stop)
        return range(start, max(start, stop))


class NativeImages(ImageMemory, NativeMemory):
    """The images of open sequences of a C forward."""

    sequences: dict[int, Seen]

    def __init__(
        self,
        rotaries: Sequence[Rotary | None],
        layers: int,
        multiplier: float = 1,
    ) -> None:
        """`rotaries`: one for each of the `layers` layers. `multiplier`: factor of the
        embeddings that the model's own code gives to its layers.
        """
        super().__init__()
        self._rotaries = rotaries
        self._layers = layers
        self._multiplier = multiplier

    def images(self, id: int) -> ImageRows | None:
        seen = self.sequences.get(id)
        return None if seen is None else seen.images

    @torch.inference_mode()
    def give(self, executor: Any, id: int, material: ImageRows) -> None:
        """Set the images of an open sequence, before its first read.

        Raises InvalidRequest where the layers need an input that the C code does not
        have.
        """
        images = material
        if set(images.inputs) != {EMBEDDINGS} or len(images.deep) >= self._layers:
            raise InvalidRequest(
                "cannot read images on backend 'native': the layers of this model are "
                "given more of them than it reads. Load the model with backend='pool'"
            )
        embeddings = images.inputs[EMBEDDINGS][0].float() * self._multiplier
        layers = [embeddings.contiguous()]
        for states in images.deep:
            assert images.marks is not None
            layers.append(torch.zeros_like(embeddings))
            layers[-1][images.marks] = states.float()
        angles: dict[Rotary, tuple[Tensor, ...]] = {}
        positions, shift = list[int](), 0
        if images.positions is not None:
            positions = images.positions[-1].tolist()
            shift = int(images.positions.max()) + 1 - images.tokens
            axes = images.positions[-3:, images.start : images.stop]
            axes = axes[:, None] if len(axes) > 1 else axes
            like = torch.zeros(1, dtype=torch.float32)
            for rotary in filter(None, dict.fromkeys(self._rotaries)):
                tables = rotary(like, axes)
                angles[rotary] = tuple(table.float().flatten(0, -2) for table in tables)
        # the last key is included there, and excluded here
        after = torch.tensor([0, 1])
        reach = {windowed: ends + after for windowed, ends in images.reach.items()}
        self.sequences[id] = Seen(images, layers, angles, positions, reach, shift)

    def describe(
        self,
        executor: NativeExecutor,
        call: forward.Forward,
        reads: Sequence[Read],
        beyond: int,
    ) -> None:
        if self.sequences:
            self._place(executor, call, reads, beyond)
            self._show(executor, call, reads)

    @torch.inference_mode()
    def _place(
        self,
        executor: NativeExecutor,
        call: forward.Forward,
        reads: Sequence[Read],
        beyond: int,
    ) -> None:
        """Assign positions to rows where positions do not count tokens (M-RoPE).

        An image token has several positions, so its angles are appended to the table,
        after the angles of all positions.
        """
        images = [self.sequences.get(read.id) for read in reads]
        placed = [seen for seen in images if seen is not None and seen.positions]
        if not placed:
            return
        spare = sum(
            len(seen.within(read))
            for seen, read in zip(images, reads, strict=True)
            if seen in placed
        )
        longest = call.longest + max(0, *(seen.shift for seen in placed))
        tables = executor.angles
        tables.reach(executor.model, longest, spare + beyond)
        positions = array("q")
        at = tables.reached  # where the angles of the next image token go
        for seen, read in zip(images, reads, strict=True):
            indices = (read.past + depth for depth in read.depths)
            if seen is None or not seen.positions:
                positions.extend(indices)
                continue
            rows = seen.within(read)
            for index in indices:
                if index in rows:
                    positions.append(at + index - rows.start)
                elif index < len(seen.positions):
                    positions.append(seen.positions[index])
                else:
                    positions.append(index + seen.shift)
            first = seen.images.start
            for rotary, pair in seen.angles.items():
                for table, angles in zip(tables.tables[rotary], pair, strict=True):
                    mine = angles[rows.start - first : rows.stop - first]
                    table[at : at + len(rows)] = mine
            at += len(rows)
        call.positions = executor.alive(positions)

    def _show(
        self,
        executor: NativeExecutor,
        call: forward.Forward,
        reads: Sequence[Read],
    ) -> None:
        """Put the images into a forward."""
        shown: list[tuple[int, Seen, range]] = []
        row = 0
        for read in reads:
            seen = self.sequences.get(read.id)
            if seen is not None and (rows := seen.within(read)):
                shown.append((row + rows.start - read.start, seen, rows))
            row += len(read.tokens)
        if not shown:
            return
        layers = max(len(seen.layers) for _, seen, _ in shown)
        addresses = array("q", bytes(ADDRESS * layers * row))
        for first, seen, rows in shown:
            for number, states in enumerate(seen.layers):
                start = states[rows.start - seen.images.start].data_ptr()
                step = states.stride(0) * states.itemsize
                at = number * row + first
                addresses[at : at + len(rows)] = array(
                    "q", range(start, start + step * len(rows), step)
                )
        call.image = executor.alive(addresses)
        call.image_layers = layers

    def describe_span(
        self,
        described: forward.Span,
        span: Span,
    ) -> None:
        read = span.read
        seen = self.sequences.get(read.id)
        if seen is not None and read.start < seen.images.tokens:
            described.placed = seen.images.tokens - read.start
            for windowed, ends in seen.reach.items():
                described.reach[windowed] = ends[read.start].data_ptr()
