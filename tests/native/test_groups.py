"""Products with weights in groups against their plain definition, by row."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor

from foreword.model.executors.native import grouped
from foreword.model.executors.native.grouped import packed, whole
from foreword.model.quantized.coded import Coded, Matrix, Scales, joined
from foreword.native import forward
from foreword.native.workspace import Workspace, multiplied
from grids import NEEDS_C

pytestmark = NEEDS_C
OUTPUTS, DEPTH, ROWS = 48, 1024, 37


def empty(size: int, _: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


KINDS = ("bfloat16", "float16", "float32", "two levels", "zero points")


def coded(bits: int, group: int, kind: str, outputs: int = OUTPUTS) -> Coded:
    """A matrix whose scales, and offsets if any, take each form that strips store."""
    generator = torch.Generator().manual_seed(bits * group)

    def uniform(spans: int) -> Tensor:
        return torch.rand(outputs, spans, generator=generator)

    def numbers(low: int, high: int, *size: int) -> Tensor:
        return torch.randint(low, high, size, generator=generator)

    groups = DEPTH // group
    codes = numbers(0, 2**bits, outputs, DEPTH).to(torch.uint8)
    low = -(2 ** (bits - 1))
    levels = numbers(-127, 128, 16) if bits == 4 else torch.arange(low, -low)
    half = uniform(groups).half().float()
    scale, offset = {
        "bfloat16": (Scales(uniform(groups).bfloat16().float()), None),
        "float16": (Scales(half), None),
        "float32": (Scales(uniform(groups)), Scales(-uniform(groups))),
        "two levels": (
            Scales(uniform(groups // 4), numbers(0, 64, outputs, groups)),
            Scales(-uniform(groups // 4), numbers(-128, 64, outputs, groups)),
        ),
        "zero points": (Scales(half), Scales(half, -numbers(0, 16, outputs, groups))),
    }[kind]
    return Coded(codes, levels.to(torch.int8), scale, offset, group)


def multiply(
    matrix: Tensor, rows: Tensor, outputs: int = OUTPUTS, threads: int = 1
) -> Tensor:
    head = forward.Model(
        hidden=rows.shape[1],
        heads=1,
        kv_heads=1,
        dim=16,
        vocab=outputs,
        head=matrix.data_ptr(),
        coding=forward.GROUPS,
    )
    return multiplied(forward.needed(), head, Workspace(head), rows, threads)


def span_of(matrix: Coded) -> int | None:
    """Inputs of a span whose groups add up in whole numbers; None without any."""
    span = DEPTH // matrix.scale.values.shape[1]
    low = int(matrix.levels[0])
    consecutive = matrix.levels.tolist() == list(range(low, low + len(matrix.levels)))
    fits = matrix.scale.factors is not None and span <= 256
    return span if fits and consecutive and bits(matrix) < 8 else None


MATTERS = 5e-5


def rounded(rows: Tensor, span: int, group: int) -> Tensor:
    """Rows in 127 steps for each group, or 2, 4 or 8 times as fine where that lowers
    the squares of errors by a share of the row's.
    """
    spans = rows.unflatten(1, (-1, span // group, group))
    top = spans.abs().amax((-2, -1), keepdim=True)
    own = spans.abs().amax(-1, keepdim=True)
    times = ((own > 0) & (own * more <= top) for more in (2, 4, 8))
    finer = sum(fits.float() for fits in times)
    step = top / 127
    errors = group * (step**2 - (step / 2**finer) ** 2) / 12
    lowered = errors.sum(2, keepdim=True)
    finer *= lowered > MATTERS * spans.square().sum((1, 2, 3), keepdim=True)
    by = torch.tensor(127.0).div(top) * 2**finer
    return ((spans * by).round() * (top / 127) / 2**finer).flatten(1)


def defined(matrix: Coded, rows: Tensor) -> Tensor:
    """The product of rows that are rounded to 127 steps in each group of at most 128
    inputs, or as `rounded` says where groups are added up in whole numbers.
    """
    rows = rows.bfloat16().float()
    span = span_of(matrix)
    if span is not None:
        return rounded(rows, span, matrix.group).double() @ matrix.dense().double().T
    groups = rows.unflatten(1, (-1, min(matrix.group, 128)))
    most = groups.abs().amax(-1, keepdim=True)
    steps = (groups * torch.tensor(127.0).div(most)).round()
    return (steps * (most / 127)).flatten(1).double() @ matrix.dense().double().T


def given() -> Tensor:
    return torch.randn(ROWS, DEPTH, generator=torch.Generator().manual_seed(1))


GROUPS = [16, 32, 64, 128, 256]
BITS = (4, 5, 6, 8)
PAIRWISE = {
    (BITS[(row + column) % 4], GROUPS[(row + 2 * column) % 5], kind)
    for row, kind in enumerate(KINDS)
    for column in range(5)
}
"""Each pair of a group and a kind of scales once; `make test-all` runs the others."""


@pytest.mark.parametrize(
    ("bits", "group", "kind"),
    [
        pytest.param(*case, marks=[] if case in PAIRWISE else pytest.mark.slow)
        for case in product(BITS, GROUPS, KINDS)
    ],
)
def test_products_are_those_of_the_definition(bits, group, kind, registers):
    matrix, rows = coded(bits, group, kind), given()
    held = packed(matrix)
    found, expected = multiply(held, rows), defined(matrix, rows)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    for count in (1, 3, 8, 16, 17):
        assert torch.equal(multiply(held, rows[:count]), found[:count])
    assert torch.equal(multiply(held, rows, threads=2), found)


FILES = {
    "Q2_K": (2, 0, 16, True),
    "Q3_K": (3, -4, 16, False),
    "Q4_K": (4, 0, 32, True),
    "Q5_K": (5, 0, 32, True),
    "Q6_K": (6, -32, 16, False),
}
"""By type: bits, the level of code 0, depths of a group, whether it has offsets."""


def uneven() -> Tensor:
    """Rows whose numbers change their size after every 16."""
    generator = torch.Generator().manual_seed(3)
    sizes = torch.randint(-5, 4, (ROWS, DEPTH // 16), generator=generator)
    return given() * (2.0**sizes).repeat_interleave(16, dim=1)


def sparse() -> Tensor:
    """Rows with groups of zeros."""
    rows = given()
    rows[:, 64:128] = 0
    return rows


def k_quant(kind: str, outputs: int = OUTPUTS) -> Coded:
    """A random matrix of a type whose scales have two levels, in spans of 256."""
    size, least, group, has_offset = FILES[kind]
    generator = torch.Generator().manual_seed(size)

    def numbers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    def scales(low: int, high: int) -> Scales:
        top = torch.rand(outputs, DEPTH // 256, generator=generator).half().float()
        return Scales(top, numbers(low, high, outputs, DEPTH // group))

    codes = numbers(0, 2**size, outputs, DEPTH).to(torch.uint8)
    levels = torch.arange(least, least + 2**size).to(torch.int8)
    scale = scales(0, 64) if has_offset else scales(-128, 128)
    offset = scales(0, 64) if has_offset else None
    return Coded(codes, levels, scale, offset, group)


@pytest.mark.parametrize("size", [given, uneven, sparse])
@pytest.mark.parametrize("kind", FILES)
def test_spans_are_added_up_in_whole_numbers(kind, size, registers):
    matrix, rows = k_quant(kind), size()
    assert span_of(matrix) == 256
    held = packed(matrix)
    found, expected = multiply(held, rows), defined(matrix, rows)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    for count in (1, 2, 5, 8, 9):
        assert torch.equal(multiply(held, rows[:count]), found[:count])
    assert torch.equal(multiply(held, rows, threads=2), found)


def test_largest_spans_fit_in_whole_numbers(registers):
    """Each factor, level and number of a row is the largest."""
    codes = torch.full((OUTPUTS, DEPTH), 63, dtype=torch.uint8)
    tops = torch.ones(OUTPUTS, DEPTH // 256)
    factors = torch.full((OUTPUTS, DEPTH // 16), -128)
    levels = torch.arange(-32, 32).to(torch.int8)
    matrix = Coded(codes, levels, Scales(tops, factors), None, 16)
    found = multiply(packed(matrix), torch.ones(9, DEPTH))
    assert (found == -128 * 31 * DEPTH).all()


def test_both_kinds_of_registers_give_the_same_bits():
    library = forward.needed()
    if not forward.amx():
        pytest.skip("the processor has no matrix registers")
    rows = uneven()
    for matrix in (coded(4, 32, "two levels"), *map(k_quant, FILES)):
        held, both = packed(matrix), []
        for use in (0, 1):
            library.foreword_use_amx(use)
            both.append(multiply(held, rows))
        assert torch.equal(*both)


def test_row_of_zeros_gives_zeros(registers):
    assert bool(
        (multiply(packed(coded(4, 32, "float32")), torch.zeros(3, DEPTH)) == 0).all()
    )


def test_outputs_need_not_fill_a_strip():
    matrix, rows = coded(4, 32, "float32", outputs=37), given()
    found = multiply(packed(matrix), rows, outputs=37)
    torch.testing.assert_close(found.double(), defined(matrix, rows), rtol=0, atol=1e-2)


def test_a_matrix_without_groups_stays_bfloat16():
    weight = torch.randn(
        OUTPUTS, DEPTH, generator=torch.Generator().manual_seed(2)
    ).bfloat16()
    panels = torch.empty_like(weight)
    forward.needed().foreword_pack(weight.data_ptr(), panels.data_ptr(), *weight.shape)
    found = multiply(whole(panels, empty), given())
    torch.testing.assert_close(
        found, given().bfloat16().float() @ weight.float().T, rtol=0, atol=1e-3
    )


@pytest.mark.parametrize("in_turns", [False, True])
def test_strips_are_packed_as_the_whole(monkeypatch, in_turns):
    monkeypatch.setattr(grouped, "PART", 3 * forward.LANES * DEPTH)
    codes = coded(4, 32, "two levels", outputs=256)
    whole = Matrix(lambda: codes, codes.codes.shape, lambda weights: weights)
    parts = replace(whole, part=codes.rows)
    found = grouped.packed_parts([parts], empty, in_turns=in_turns)
    expected = grouped.packed_parts([whole], empty, in_turns=in_turns)
    assert torch.equal(found, expected)


def test_joined_matrices_stay_what_they_are():
    parts = [
        coded(4, 32, "two levels"),
        coded(4, 32, "float16"),
        coded(8, 16, "two levels"),
        coded(8, 64, "bfloat16"),
    ]
    for some in (parts[:1], parts[:2], parts):
        assert torch.equal(
            joined(some).dense(), torch.cat([one.dense() for one in some])
        )
    alike = joined([parts[0], parts[0]])
    assert alike.scale.factors is not None
    assert torch.equal(
        alike.rows(torch.tensor([50, 3])).dense(), parts[0].dense()[[2, 3]]
    )


def bits(matrix: Coded) -> int:
    return forward.Grouped.from_buffer_copy(packed(matrix).numpy().tobytes()).bits


def test_codes_are_stored_in_their_own_bits():
    assert [bits(coded(size, 32, "float16")) for size in (4, 5, 6, 8)] == [4, 5, 6, 8]
    assert bits(coded(5, 16, "float16")) == 6, "a block of 5 bits is 32 depths"
    held = {size: packed(coded(size, 128, "bfloat16")).numel() for size in (4, 5, 6)}
    each = OUTPUTS * DEPTH // 8
    assert [held[size] - held[4] for size in (5, 6)] == [each, 2 * each]


def test_joined_spans_stay_in_whole_numbers():
    both = joined([k_quant("Q4_K"), k_quant("Q6_K")])
    assert bits(both) == 6
    assert both.levels.tolist() == list(range(-32, 32))
    assert both.scale.factors is not None
    assert both.offset is not None
    assert both.offset.factors is not None
    assert span_of(both) == 256
    assert torch.equal(both.dense()[:OUTPUTS], k_quant("Q4_K").dense())
    assert torch.equal(both.dense()[OUTPUTS:], k_quant("Q6_K").dense())
    found = multiply(packed(both), uneven(), outputs=2 * OUTPUTS)
    expected = defined(both, uneven())
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
