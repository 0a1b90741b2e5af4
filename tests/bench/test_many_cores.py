"""The estimate for many cores: its page and its one measurement."""

from pathlib import Path

import pytest
from recipes import many_cores

PAGE = Path(__file__).parents[2] / "docs/notes/measured/many-cores.md"
TOKEN = 1000 / 30.6
"""Milliseconds of a token of the 1.5B in Q4_K_M, measured on two cores."""


@pytest.mark.parametrize("shape", [many_cores.QWEN, many_cores.SMALL])
def test_page_has_the_tables(shape):
    assert many_cores.table(shape, 1) in PAGE.read_text(encoding="utf-8")


def test_two_cores_take_what_was_measured():
    estimated = many_cores.row(many_cores.QWEN, 1, 2)["before, pages on one node"]
    assert estimated == pytest.approx(TOKEN, rel=0.15)


def test_few_panels_leave_threads_idle():
    """1,536 outputs are 24 chunks of two panels, whatever the number of threads."""
    row = many_cores.row(many_cores.QWEN, 8, 192)
    assert row["uneven"] > 0.25 * row["products"]
