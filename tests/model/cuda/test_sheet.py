"""The sheet of a forward equals the plain masks, row by row and key by key."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from foreword.model.executors.cuda import launch
from foreword.model.executors.cuda.table import columns, row_table
from foreword.model.kv.pages import PageTable
from foreword.model.kv.prefixes import PAGE
from foreword.model.kv.reads import Read, Span
from layers import keys_of

trees = st.integers(0, 60).flatmap(
    lambda n: st.tuples(*(st.integers(-1, node - 1) for node in range(n)))
)
shapes = st.tuples(
    st.integers(0, 90),
    st.integers(1, 6),
    st.none() | trees,
    st.integers(0, 3),
    st.integers(0, 2),
)
"""Tokens held, in a line, the tree, its nodes read before, and logits to keep."""


def spans_of(drawn) -> list[Span]:
    spans, start, room = [], 0, PAGE
    for name, (past, first_chain, tree, held, keep) in enumerate(drawn):
        held = 0 if not tree else min(held, len(tree) - 1)
        count = first_chain
        if tree is not None:
            count = (0 if held else first_chain) + len(tree) - held
        tokens = list(range(7, 7 + count))
        parents = None if tree is None else list(tree)
        read = Read(name, past, tokens, parents, keep=min(keep, count), held=held)
        table = PageTable(3 * PAGE)
        table.put(0, [room // PAGE, room // PAGE + 1, room // PAGE + 2])
        spans.append(Span(start, start + count, table, read))
        start, room = start + count, room + 3 * PAGE
    return spans


def seen(table: torch.Tensor, row: int, window: int | None, words: int) -> list[int]:
    """The keys that a line lets its row see, as the kernel reads it."""
    line = table[row].tolist()
    bits = [
        (line[words + n // launch.BITS] >> n % launch.BITS) & 1
        for n in range(launch.MOST)
    ]
    free = [
        key
        for key in range(line[launch.CHAIN_ROWS])
        if window is None or key > line[launch.POSITION] - window
    ]
    return free + [
        line[launch.CHAIN_ROWS] + n
        for n, bit in enumerate(bits)
        if bit and line[launch.CHAIN_ROWS] + n < line[launch.LENGTH]
    ]


@given(
    st.lists(shapes, min_size=1, max_size=3),
    st.none() | st.integers(1, 20) | st.just(launch.MOST + 40),
)
def test_sheet_equals_the_masks(drawn, window):
    spans = spans_of(drawn)
    words = columns([window])
    table = torch.from_numpy(row_table(spans, spans[-1].stop + 5, 4, 11, words))
    for span in spans:
        for row, want in enumerate(keys_of(span, window), span.start):
            assert seen(table, row, window, words.get(window, words[None])) == want


@given(st.lists(shapes, min_size=1, max_size=3))
def test_sheet_holds_what_is_read_written_and_kept(drawn):
    spans, tile = spans_of(drawn), 4
    rows, read = spans[-1].stop + 5, spans[-1].stop
    table = torch.from_numpy(row_table(spans, rows, tile, 11, columns([])))
    assert table[:read, launch.TOKEN].tolist() == [
        token for span in spans for token in span.read.tokens
    ]
    where = [span.read.past + depth for span in spans for depth in span.read.depths]
    assert table[:read, launch.POSITION].tolist() == where
    assert table[:read, launch.RUN].tolist() == [
        span.table.start for span in spans for _ in span.read.tokens
    ]
    places = [
        span.table.start + span.read.start + i
        for span in spans
        for i in range(len(span.read.tokens))
    ]
    assert table[:, launch.PLACE].tolist() == [*places, 11, 11, 11, 11, 11]
    assert not table[read:, launch.LENGTH].any()
    kept = [
        row for span in spans for row in range(span.stop - span.read.keep, span.stop)
    ]
    assert table[: len(kept), launch.KEPT].tolist() == kept
    covered = [
        row
        for first, count in table[:, [launch.FIRST, launch.COUNT]].tolist()
        for row in range(first, first + count)
    ]
    # each row in one tile, and no tile across two sequences
    assert covered == list(range(read))
    owner = [span.read.id for span in spans for _ in span.read.tokens]
    assert all(
        owner[first] == owner[first + count - 1]
        for first, count in table[:, [launch.FIRST, launch.COUNT]].tolist()
        if count
    )
    assert table[:, launch.COUNT].max() <= tile


def test_only_short_windows_have_words():
    assert columns([None, 5, launch.MOST, 4096]) == {
        None: launch.WORDS,
        5: launch.WORDS + launch.MOST // launch.BITS,
        -1: launch.WORDS + 2 * launch.MOST // launch.BITS,
    }
