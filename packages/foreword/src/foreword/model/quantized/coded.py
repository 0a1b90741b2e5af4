"""Common form of quantized matrices, to which the readers of all formats convert."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Float8e4m3fn, Float32, Int, Int8, UInt8
from torch import Tensor

from foreword.native import forward
from foreword.native.openmp import in_parallel

PART = 2**20
"""Weights made at a time: they fit in a core's caches, which is twice as fast."""


Blocks = Callable[[slice], tuple[str, Tensor]]
"""Returns the type of some outputs in a GGUF file, and their bytes."""
Rows = slice | Int[Tensor, "rows"]
"""Some outputs of a matrix."""


@dataclass(frozen=True, slots=True)
class Scales:
    """A number for each output and group of inputs, as a checkpoint stores them: often
    in two levels.
    """

    values: Float32[Tensor, "outputs spans"]
    """One for each span of consecutive groups, which divide an output evenly."""
    factors: Int[Tensor, "outputs groups"] | None = None
    """Whole numbers in [-128, 255] by which those are multiplied, one a group
    (K-quants); None = all are 1.
    """

    def dense(self, groups: int) -> Float32[Tensor, "outputs groups"]:
        """Return the number of each group."""
        values = self.values.repeat_interleave(groups // self.values.shape[1], dim=1)
        return values if self.factors is None else values * self.factors

    def rows(self, index: Rows) -> "Scales":
        """Return the numbers of some outputs."""
        factors = None if self.factors is None else self.factors[index]
        return Scales(self.values[index], factors)


@dataclass(frozen=True, slots=True)
class Coded:
    """A quantized matrix.

    weight[o, i] = scale[o, g] * levels[codes[o, i]] + offset[o, g], g = i // group.
    """

    codes: UInt8[Tensor, "outputs depth"]
    """One a byte, each below len(levels)."""
    levels: Int8[Tensor, "codes"] | Float8e4m3fn[Tensor, "256"]
    """Whole number of each code: 16 of 4 bits, up to 256; or the number of each byte in
    E4M3.
    """
    scale: Scales
    offset: Scales | None
    """Added to each weight, for formats without a level for zero; None = nothing."""
    group: int
    """Consecutive inputs that share a scale; a multiple of 16."""

    @property
    def groups(self) -> int:
        """Groups of an output."""
        return self.codes.shape[1] // self.group

    @property
    def consecutive(self) -> bool:
        """Whether each level is one more than that before it."""
        low = int(self.levels[0])
        steps = torch.arange(low, low + len(self.levels), device=self.levels.device)
        return torch.equal(self.levels, steps.to(torch.int8))

    def dense(self) -> Float[Tensor, "outputs depth"]:
        """Return float32 weights, as every kernel over this form must compute them."""
        # twice as fast as torch
        level = torch.from_numpy(
            np.take(self.levels.float().numpy(), self.codes.numpy())
        )
        weight = (
            level.unflatten(1, (self.groups, self.group))
            * self.scale.dense(self.groups)[..., None]
        )
        if self.offset is not None:
            weight = weight + self.offset.dense(self.groups)[..., None]
        return weight.flatten(1)

    def weights(self, dtype: torch.dtype) -> Float[Tensor, "outputs depth"]:
        """Return the weights in a dtype, made a part at a time: in float32 they take
        twice as much memory or more.
        """
        whole = torch.empty(self.codes.shape, dtype=dtype)
        fill(whole, self.rows)
        return whole

    def rows(self, index: Rows) -> "Coded":
        """Return some outputs."""
        return self.changed(self.codes[index], lambda part: part.rows(index))

    def columns(self, index: Int[Tensor, "columns"]) -> "Coded | None":
        """Return some inputs; None where that takes groups apart."""
        starts = index.view(-1, self.group)[:, :1]
        if bool((starts % self.group).any()) or not torch.equal(
            starts + torch.arange(self.group), index.view(-1, self.group)
        ):
            return None
        groups = starts[:, 0] // self.group
        return self.changed(
            self.codes[:, index],
            lambda part: Scales(part.dense(self.groups)[:, groups]),
        )

    def finer(self, group: int) -> "Coded":
        """Return the same weights in smaller groups."""
        times = self.group // group

        def repeated(part: Scales) -> Scales:
            values, factors = part.values, part.factors
            if factors is not None:
                return Scales(values, factors.repeat_interleave(times, 1))
            values = part.dense(self.groups)
            return Scales(values.repeat_interleave(times, 1))

        return replace(self.changed(self.codes, repeated), group=group)

    def changed(
        self,
        codes: UInt8[Tensor, "outputs depth"],
        change: Callable[[Scales], Scales],
    ) -> "Coded":
        """Return other codes, with scales and offsets that are changed alike."""
        offset = None if self.offset is None else change(self.offset)
        return Coded(codes, self.levels, change(self.scale), offset, self.group)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A quantized weight of a checkpoint, which stays in its file until it is read."""

    read: Callable[[], Coded]
    shape: torch.Size
    """Shape of the weight in the model."""
    shaped: Callable[[Tensor], Tensor]
    """Returns the weights of the matrix as the model holds them."""
    exact: Callable[[], Tensor] | None = None
    """Reads the weights in float32 where `read` rounds them; None = it does not."""
    part: Callable[[slice], Coded] | None = None
    """Reads consecutive outputs; None = only `read` reads the matrix."""
    blocks: Blocks | None = None
    """Reads consecutive outputs of a GGUF file that holds them in this order."""
    floats: bool = False
    """Whether its levels are E4M3, which C does not multiply."""

    def weights(self, dtype: torch.dtype) -> Float[Tensor, "..."]:
        """Read the matrix; return its weights as the model holds them."""
        if self.exact is not None:
            return self.shaped(self.exact().to(dtype))
        if self.part is None:
            return self.shaped(self.read().weights(dtype))
        whole = torch.empty(self.shape, dtype=dtype)
        self.write(whole)
        return whole

    def write(self, whole: Float[Tensor, "..."]) -> None:
        """Read the matrix into a tensor of its shape: at once where it is read in
        parts, since new memory costs more than the numbers in it.
        """
        if self.part is None or self.exact is not None:
            whole.copy_(self.weights(whole.dtype))
        else:
            fill(whole.view(-1, self.shape[-1]), self.part, self.blocks)

    def __deepcopy__(self, memo: object) -> "Matrix":
        return self  # a copy would hold a copy of the file


def fill(
    whole: Float[Tensor, "outputs depth"],
    part: Callable[[slice], Coded],
    blocks: Blocks | None = None,
) -> None:
    """Write the weights of a matrix, some outputs at a time; from `blocks` in C, where
    it reads their type.
    """
    outputs, depth = whole.shape
    step = max(1, PART // depth)
    rows = [slice(start, start + step) for start in range(0, outputs, step)]

    def write(at: slice) -> None:
        if blocks is None or not _unpacked(whole[at], *blocks(at)):
            whole[at].copy_(part(at).dense())

    for _ in in_parallel(write, rows):
        pass


def _unpacked(
    numbers: Float[Tensor, "outputs depth"],
    kind: str,
    data: UInt8[Tensor, "_ bytes"],
) -> bool:
    """Unpack outputs of a GGUF file in C; return False where C cannot."""
    library, narrow = forward.library(), numbers.dtype == torch.bfloat16
    has_dtype = narrow or numbers.dtype == torch.float32
    if isinstance(library, str) or kind not in forward.BLOCKS or not has_dtype:
        return False
    number = forward.BLOCKS.index(kind)
    places = data.data_ptr(), *numbers.shape, numbers.data_ptr()
    library.foreword_numbers(number, *places, narrow)
    return True


def joined(parts: Sequence[Coded]) -> Coded:
    """Return the outputs of several matrices one after another; levels and groups that
    they do not share are widened, without rounding.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    groups = {part.group for part in parts}
    if len(groups) > 1 or not all(
        torch.equal(part.levels, first.levels) for part in parts
    ):
        levels = _span([part.levels for part in parts])
        return joined([_widened(part, min(groups), levels) for part in parts])
    offset = None
    if any(part.offset is not None for part in parts):
        offsets = [
            _zeros(part) if part.offset is None else part.offset for part in parts
        ]
        offset = _joined(offsets, first.groups)
    scale = _joined([part.scale for part in parts], first.groups)
    return Coded(
        torch.cat([part.codes for part in parts]),
        first.levels,
        scale,
        offset,
        first.group,
    )


def _joined(parts: Sequence[Scales], groups: int) -> Scales:
    forms = {(part.values.shape[1], part.factors is None) for part in parts}
    if len(forms) > 1:
        return Scales(torch.cat([part.dense(groups) for part in parts]))
    values = torch.cat([part.values for part in parts])
    factors = [part.factors for part in parts if part.factors is not None]
    return Scales(values, torch.cat(factors) if factors else None)


def _span(levels: Sequence[Int8[Tensor, "_"]]) -> Int8[Tensor, "span"]:
    """Return all whole numbers between the least and the largest of some levels."""
    low = min(int(one.min()) for one in levels)
    high = max(int(one.max()) for one in levels)
    return torch.arange(low, high + 1).to(torch.int8)


def _widened(part: Coded, group: int, span: Int8[Tensor, "span"]) -> Coded:
    """Return the matrix with the levels of a span, and a scale for smaller groups."""
    levels = part.levels.to(torch.int16) - int(span[0])
    codes = levels[part.codes.long()].to(torch.uint8)
    return replace(part.finer(group), codes=codes, levels=span)


def _zeros(part: Coded) -> Scales:
    """Return offsets of zero, in the form of the scales."""
    scale = part.scale
    factors = None if scale.factors is None else torch.zeros_like(scale.factors)
    return Scales(torch.zeros_like(scale.values), factors)
