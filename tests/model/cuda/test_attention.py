"""The kernels beside the plain definition, bits in any batch. Triton's interpreter runs
them where there is no GPU (see conftest.py).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foreword.model.executors.cuda.launch import Scoring
from foreword.model.kv.reads import Read, Span
from grids import slow_case
from layers import DEVICE, TOLERANCE, Layer

pytest.importorskip("triton")

parents = st.integers(0, 18).flatmap(
    lambda n: st.tuples(*(st.integers(-1, node - 1) for node in range(n)))
)
reads = st.tuples(
    st.integers(0, 700), st.integers(1, 6), st.none() | parents, st.integers(0, 3)
)
"""Tokens held, tokens in a line, the tree after them, and its nodes read before."""
heads = st.sampled_from([(4, 4), (6, 2), (3, 1), (8, 1), (14, 2)])
dims = st.sampled_from([(64, 64), (24, 16), (80, 80), (16, 40)])


def read_of(id: int, shape) -> Read:
    past, first_chain, tree, held = shape
    if tree is None:
        return Read(id, past, [0] * first_chain)
    held = min(held, max(len(tree) - 1, 0))
    return Read(
        id,
        past,
        [0] * ((0 if held else first_chain) + len(tree) - held),
        list(tree),
        held=held,
    )


@settings(max_examples=6)
@given(
    st.lists(reads, min_size=1, max_size=2),
    heads,
    dims,
    st.sampled_from(list(TOLERANCE)),
    st.tuples(st.none() | st.integers(1, 300), st.none() | st.just(1.5), st.booleans()),
)
def test_equal_to_the_definition(shapes, heads, dims, dtype, scored):
    window, softcap, sinks = scored
    layer = Layer(
        [read_of(name, shape) for name, shape in enumerate(shapes)], heads, dims, dtype
    )
    scoring = Scoring(
        0.3,
        window,
        softcap,
        torch.linspace(-1, 2, heads[0], device=DEVICE) if sinks else None,
    )
    want = layer.plainly(scoring)
    torch.testing.assert_close(
        layer.by_kernel(scoring), want, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("window", [None, 900])
def test_long_text_is_summed_by_splits(window):
    layer = Layer([Read(1, 2060, [0, 0], [-1]), Read(2, 3, [0])], heads=(4, 1))
    found = layer.by_kernel(Scoring(0.3, window), splits=8)
    torch.testing.assert_close(
        found, layer.plainly(Scoring(0.3, window)), atol=1e-5, rtol=1e-5
    )


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize(
    ("dtype", "past", "window"),
    [
        (torch.float32, 507, None),
        slow_case(torch.float16, 570, 420),
        (torch.bfloat16, 570, None),
    ],
)
def test_bits_of_a_row_depend_on_its_text_alone(dtype, past, window):
    """Alone or beside others, in any tiles, sheets and grids, before or after."""
    line, other = Read(1, past, [0] * 9), Read(2, 70, [0] * 3, [-1, -1])
    scoring = Scoring(0.3, window)
    together = Layer([line, other], dtype=dtype)
    want = together.by_kernel(scoring)
    for rows, splits in ((16, 2), (12, 5)):
        assert torch.equal(together.by_kernel(scoring, rows, splits)[:12], want)
    # the same rows of the same text, read by themselves
    for first, last in ((0, 1), (3, 5), (8, 9)):
        (span, _), part = together.spans, Layer([])
        part.__dict__.update(
            vars(together), count=last - first, query=together.query[first:last]
        )
        part.spans = [
            Span(
                0, last - first, span.table, Read(1, past + first, [0] * (last - first))
            )
        ]
        assert torch.equal(part.by_kernel(scoring), want[first:last])
    turned = Layer([])
    turned.__dict__.update(vars(together), query=together.query.roll(3, 0))
    turned.spans = [
        Span(0, 3, together.spans[1].table, other),
        Span(3, 12, together.spans[0].table, line),
    ]
    assert torch.equal(turned.by_kernel(scoring).roll(-3, 0), want)


@pytest.mark.usefixtures("blind")
def test_branch_has_the_bits_of_a_line():
    """The keys of a branch lie where a line's would, up to another branch's node."""
    tree = Layer([Read(1, 600, [0] * 6, [-1, 0, 1, -1, 3])])
    line = Layer([])
    line.__dict__.update(
        vars(tree), spans=[Span(0, 6, tree.spans[0].table, Read(1, 600, [0] * 6))]
    )
    assert torch.equal(
        tree.by_kernel(Scoring(0.3))[:4], line.by_kernel(Scoring(0.3))[:4]
    )
    assert not torch.equal(
        tree.by_kernel(Scoring(0.3))[4:], line.by_kernel(Scoring(0.3))[4:]
    )


def test_memory_beyond_a_text_is_not_read():
    layer = Layer([Read(1, 40, [0] * 2)])
    want = layer.by_kernel(Scoring(0.3))
    span = layer.spans[0]
    layer.keys[span.table.start + 42 :], layer.values[span.table.start + 42 :] = (
        torch.nan,
        torch.nan,
    )
    found = layer.by_kernel(Scoring(0.3), rows=16)
    assert torch.equal(found[:2], want)
    assert not found[2:].any()


SLOW = pytest.mark.slow


@SLOW  # a process of its own, for the interpreter is chosen at import
@pytest.mark.skipif(sys.platform != "linux", reason="Triton's compiler is for Linux")
@pytest.mark.parametrize(
    "wanted",
    [
        "90 bfloat16 64 extras",
        "80 bfloat16 128",
        "80 float32 64 extras",
        "90 float16 80",
        "90 float32 128",
        "90 bfloat16 256 extras",
    ],
)
def test_kernels_compile_for_a_gpu(wanted, tmp_path):
    elsewhere = {
        name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"
    }
    script = Path(__file__).with_name("compiling.py")
    done = subprocess.run(
        [sys.executable, str(script), *wanted.split()],
        env=elsewhere
        | {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        *("partial_sums", "joined_sums", "rms_norm", "rotate"),
        *("weight_only " * 5 + "_noise").split(),
    ]
