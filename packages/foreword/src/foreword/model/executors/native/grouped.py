"""Packs quantized matrices for csrc/products/groups.c: a header, then strips of 16
outputs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import BFloat16, Int32, UInt8
from torch import Tensor

from foreword.model.quantized.coded import PART, Coded, Matrix, Scales, joined
from foreword.native import forward
from foreword.native.forward import LANES
from foreword.native.openmp import in_parallel

SIZES = (128, 64, 32, 16)
"""Depths of a group in C; larger groups are split into the largest of these that
divides them.
"""
HEADER = ctypes.sizeof(forward.Grouped)
"""Bytes before the strips."""
HALF = 16
"""Levels of 4 bits."""
OFFSETS = ("Q4_1", "Q4_K", "Q5_K")
"""Types of BLOCKS that have offsets."""
FOURS = {4: 2, 5: 8, 6: 4}
"""Fours of depths whose codes are stored together, by bits of a code."""


Empty = Callable[[int, int], Tensor]
"""Returns memory for so many bytes and outputs: new memory costs more than what is
written to it, so that a large matrix is packed at its place."""


def placed(matrix: Tensor, empty: Empty) -> Tensor:
    """Return a copy of a packed matrix in groups in such memory."""
    strips = (matrix.numel() - HEADER) // _header(matrix).strip
    return empty(matrix.numel(), LANES * strips).copy_(matrix)


def packed_parts(
    parts: Sequence[Matrix], empty: Empty, *, in_turns: bool = False
) -> UInt8[Tensor, "bytes"]:
    """Return the bytes of the outputs of matrices one after another, or the strips of
    both halves of them in turns.
    """
    whole = _by_strips(parts, empty, in_turns)
    if whole is not None:
        return whole
    # at once it takes five times the memory
    matrix = joined([part.read() for part in parts])
    if in_turns:
        index = torch.arange(len(matrix.codes)).view(2, -1, LANES)
        matrix = matrix.rows(index.transpose(0, 1).flatten())
    return placed(packed(matrix), empty)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive outputs of a part."""

    part: Matrix
    rows: slice
    at: int
    """The first of its strips, among the strips of all parts."""
    kind: str | None
    """Type of the part in a GGUF file; None if it is in none."""

    def packed(self) -> UInt8[Tensor, "bytes"]:
        """Read it, and pack it alone."""
        assert self.part.part is not None
        return packed(self.part.part(self.rows))

    def pack(self, strips: UInt8[Tensor, "strips bytes"]) -> None:
        """Pack it in C (csrc/products/strips.c), a type of BLOCKS."""
        assert self.part.blocks is not None
        kind, blocks = self.part.blocks(self.rows)
        forward.needed().foreword_strips(
            forward.BLOCKS.index(kind),
            blocks.data_ptr(),
            len(blocks),
            self.part.shape[-1],
            strips.data_ptr(),
            strips.stride(0),
        )


def _by_strips(
    parts: Sequence[Matrix], empty: Empty, in_turns: bool
) -> UInt8[Tensor, "bytes"] | None:
    """Pack some strips at a time; None where a part is not read so, or the scales of
    some strips need more digits.
    """
    pieces, strips = _pieces(parts, in_turns)
    if len({piece.kind for piece in pieces}) != 1:
        return None
    sample = replace(pieces[0], rows=slice(LANES)).packed()
    header = _header(sample)
    header.matrix = HEADER + strips * header.strip
    kind = _kind(pieces[0], header)
    whole = empty(header.matrix, LANES * strips)
    whole[:HEADER] = torch.frombuffer(bytearray(bytes(header)), dtype=torch.uint8)
    strip = header.strip
    places = whole[HEADER:].view(-1, 1 + in_turns, strip).transpose(0, 1)

    def write(piece: _Piece) -> bool:
        half, at = divmod(piece.at, places.shape[1])
        if kind is not None:
            piece.pack(places[half, at:])
            return True
        block = piece.packed()
        other = _header(block)
        other.matrix = header.matrix
        if bytes(other) != bytes(header):
            return False
        body = block[HEADER:].view(-1, strip)
        places[half, at : at + len(body)] = body
        return True

    return whole if all(list(in_parallel(write, pieces))) else None


def _kind(piece: _Piece, header: forward.Grouped) -> str | None:
    """Return the type of a piece if C packs it in the form of this header."""
    kind = piece.kind
    if kind not in forward.BLOCKS:
        return None
    field = forward.FACTOR if kind.endswith("_K") else forward.F16
    offset = field if kind in OFFSETS else 0
    return kind if (header.scale, header.offset) == (field, offset) else None


def _pieces(parts: Sequence[Matrix], in_turns: bool) -> tuple[list[_Piece], int]:
    """Return the pieces of parts that are read so, and the number of their strips; none
    where a part ends within a strip. `in_turns`: none lies in both halves.
    """
    depth = parts[0].shape[-1]
    step = LANES * max(1, PART // depth // LANES)
    pieces: list[_Piece] = []
    strips = 0
    for part in parts:
        outputs = part.shape.numel() // depth
        size = outputs // 2 if in_turns else outputs
        partly = size % LANES and (in_turns or len(parts) > 1)
        if part.part is None or partly:
            return [], 0
        kind = None if part.blocks is None else part.blocks(slice(1))[0]
        for begin in range(0, outputs, size):
            for start in range(begin, begin + size, step):
                rows = slice(start, min(start + step, begin + size))
                pieces.append(_Piece(part, rows, strips + start // LANES, kind))
        strips += -(-outputs // LANES)
    return pieces, strips


def _header(matrix: UInt8[Tensor, "bytes"]) -> forward.Grouped:
    """Return a copy of the header of a packed matrix."""
    held = bytes(matrix[:HEADER].tolist())
    return forward.Grouped.from_buffer_copy(held)


def packed(matrix: Coded) -> UInt8[Tensor, "bytes"]:
    """Return the bytes of a matrix in groups, zeros up to a whole strip."""
    matrix = _split(_padded(matrix))
    strips, groups = len(matrix.codes) // LANES, matrix.groups
    kind, tops, each = _field(matrix.scale, groups)
    parts = [each]
    heads = tops
    span = groups // matrix.scale.values.shape[1]
    offset_kind = 0
    if matrix.offset is not None:
        offset_kind, tops, each = _offset(matrix, groups)
        heads, parts = [*heads, *tops], [*parts, each]
        if tops:
            span = groups // matrix.offset.values.shape[1]
    bits = _bits(matrix)
    body = torch.cat(
        [*(_strips(part, strips) for part in parts), _codes(matrix, bits, strips)],
        dim=2,
    )
    if heads:
        spans = groups // span
        head = torch.cat([_strips(one, strips) for one in heads], dim=2)
        body = torch.cat([head, body.view(strips, spans, -1)], dim=2)
    header = forward.Grouped(
        bits, matrix.group, span if heads else 0, kind, offset_kind, body[0].numel()
    )
    header.least = int(matrix.levels.min())
    header.most = int(matrix.levels.max())
    header.counted = bits < 8 and matrix.consecutive
    if bits == 4:
        header.level[:] = (matrix.levels.tolist() + [0] * HALF)[:HALF]
    return _headed(header, body)


def whole(
    matrix: BFloat16[Tensor, "outputs depth"], empty: Empty
) -> UInt8[Tensor, "bytes"]:
    """Return the bytes of a packed matrix of bfloat16, behind the header of one without
    groups.
    """
    block = _headed(forward.Grouped(16), matrix.view(torch.uint8))
    return empty(block.numel(), len(matrix)).copy_(block)


def _headed(header: forward.Grouped, body: Tensor) -> UInt8[Tensor, "bytes"]:
    header.matrix = len(bytes(header)) + body.numel()
    return torch.cat(
        [torch.frombuffer(bytearray(bytes(header)), dtype=torch.uint8), body.flatten()]
    )


def _padded(matrix: Coded) -> Coded:
    missing = -len(matrix.codes) % LANES
    if not missing:
        return matrix
    index = torch.arange(len(matrix.codes) + missing).clamp(max=len(matrix.codes) - 1)
    padded = matrix.rows(index)
    for scales in filter(None, (padded.scale, padded.offset)):
        scales.values[-missing:] = 0
    return padded


def _split(matrix: Coded) -> Coded:
    """Return the same matrix in groups of a size that the C code has."""
    size = next(size for size in SIZES if matrix.group % size == 0)
    return matrix if matrix.group == size else matrix.finer(size)


def _field(scales: Scales, groups: int) -> tuple[int, list[Tensor], Tensor]:
    """Return how numbers are stored, the numbers of each span, and the numbers of each
    group, in the smallest form that is exact.
    """
    if scales.factors is not None and bool(
        (scales.factors >= -128).all() and (scales.factors <= 127).all()
    ):
        return forward.FACTOR, [scales.values], scales.factors.to(torch.int8)
    values = scales.dense(groups)
    if torch.equal(values.bfloat16().float(), values):
        return forward.BF16, [], values.bfloat16()
    if torch.equal(values.half().float(), values):
        return forward.F16, [], values.half()
    return forward.F32, [], values


def _offset(matrix: Coded, groups: int) -> tuple[int, list[Tensor], Tensor]:
    """Return the same of offsets; zero points are stored alone."""
    scale, offset = matrix.scale, matrix.offset
    assert offset is not None
    if (
        offset.factors is not None
        and scale.factors is None
        and torch.equal(offset.values, scale.values)
    ):
        return forward.ZERO, [], offset.factors.to(torch.int8)
    kind, tops, each = _field(offset, groups)
    if (
        kind == forward.FACTOR
        and scale.factors is not None
        and offset.values.shape != scale.values.shape
    ):
        return forward.F32, [], offset.dense(groups)  # both share their spans
    return kind, tops, each


def _strips(numbers: Tensor, strips: int) -> UInt8[Tensor, "strips groups bytes"]:
    """Return numbers [outputs, groups] as bytes, in strips of 16 outputs."""
    apart = numbers.view(strips, LANES, -1).transpose(1, 2).contiguous()
    return apart.view(torch.uint8)


def _bits(matrix: Coded) -> int:
    """Return the fewest bits of a code that C has: of 5 and 6, levels are consecutive,
    and a group is whole blocks.
    """
    count = len(matrix.levels)
    if count <= HALF:
        return 4
    for bits in (5, 6):
        if count <= 2**bits and matrix.group % (4 * FOURS[bits]) == 0:
            return bits if matrix.consecutive else 8
    return 8


def _codes(
    matrix: Coded, bits: int, strips: int
) -> UInt8[Tensor, "strips groups bytes"]:
    codes, groups = matrix.codes, matrix.groups
    if bits == 8:
        low = int(matrix.levels[0]) % 256
        levels = matrix.levels.view(torch.uint8)
        codes = codes + low if matrix.consecutive else levels[codes.int()]
    # moved whole, several times faster than by bytes
    quads = codes.view(torch.int32).view(strips, LANES, groups, -1)
    if bits != 8:
        quads = _folded(quads.unflatten(-1, (-1, FOURS[bits])), bits).flatten(-2)
    return (
        quads.permute(0, 2, 3, 1)
        .contiguous()
        .view(torch.uint8)
        .view(strips, groups, -1)
    )


def _folded(
    fours: Int32[Tensor, "... fours"], bits: int
) -> Int32[Tensor, "... stored"]:
    """Return codes a byte each, which are four to a number, in their bits: two low
    halves to a byte, then what is above them.
    """
    low = fours & 0x0F0F0F0F
    folded = low[..., ::2] | low[..., 1::2] << 4
    if bits == 4:
        return folded
    above = (fours >> 4) & 0x03030303
    places = [above[..., four] << four * (bits - 4) for four in range(FOURS[bits])]
    return torch.cat([folded, sum(places, torch.tensor(0)).int()[..., None]], dim=-1)
