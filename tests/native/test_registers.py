"""Sums of a product stay in registers: otherwise it is slower, and the same."""

import platform
import re
import shutil
from pathlib import Path

import pytest

from grids import slow_case

ADDED = re.compile(r"vdpbf16ps|vfmadd\d+ps")
WHOLE = re.compile(r"vpdpwssd|vpdpbusd|vpmaddwd")
"""Instructions that add a product to a sum, of numbers and of integers."""
KEPT = re.compile(
    r"v?mov\S*\s+.*\((%rsp|%rbp)\S*.*%[xyz]mm|v?mov\S*\s+%[xyz]mm.*\((%rsp|%rbp)"
)
"""A vector comes from the stack or goes there."""


def innermost(lines: list[str]) -> list[list[str]]:
    """The loops of a function that hold no other loop."""
    places = {
        line[:-1]: number for number, line in enumerate(lines) if line.endswith(":")
    }
    jumps = (
        (re.match(r"\s+j\w+\s+(\.L\w+)$", line), end) for end, line in enumerate(lines)
    )
    loops = {
        (places[found[1]], end)
        for found, end in jumps
        if found and places.get(found[1], end) < end
    }
    within = {
        outer
        for outer in loops
        for one in loops
        if one != outer and outer[0] <= one[0] <= one[1] <= outer[1]
    }
    return [lines[start:end] for start, end in loops - within]


def products(loop: list[str], added: re.Pattern[str]) -> int:
    return sum(map(bool, map(added.search, loop)))


@pytest.mark.skipif(
    platform.machine() != "x86_64" or shutil.which("gcc") is None,
    reason="needs gcc for x86-64",
)
@pytest.mark.parametrize("processor", ["cooperlake", slow_case("skylake-avx512")])
def test_sums_stay_in_registers(processor: str, compile_once):
    """Sums of at most 12 rows, in bfloat16, 8 and 4 bits, both ways."""
    source = Path(__file__).with_name("registers.c")
    flags = (f"-march={processor}", "-shared", "-fPIC", "-S")
    text = compile_once(source, "gcc", *flags).read_text()
    for name, most, added in (
        ("whole_tile_12", 24, ADDED),
        ("byte_tile_6", 24, WHOLE),
        ("in_floats_TABLE_8", 16, WHOLE),
        ("in_spans_FOURS_8", 16, WHOLE),
        ("in_spans_SIXES_8", 16, WHOLE),
    ):
        found = re.search(
            rf"^{name}:\n(.*?)^\s+\.size\s+{name},", text, re.MULTILINE | re.DOTALL
        )
        assert found is not None, name
        loops = [
            loop
            for loop in innermost(found[1].splitlines())
            if products(loop, added) > 1
        ]
        assert max(products(loop, added) for loop in loops) >= most, name
        for loop in loops:
            kept = [line for line in loop if KEPT.search(line)]
            assert len(kept) <= products(loop, added) / 6, (name, kept)
