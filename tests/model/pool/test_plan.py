"""Which key a row may see: the rule written out token by token."""

from hypothesis import given
from hypothesis import strategies as st

from foreword.model.kv.pages import PageTable, whole
from foreword.model.kv.prefixes import PAGE
from foreword.model.kv.reads import Read, Span
from layers import keys_of

parents_of_trees = st.integers(0, 7).flatmap(
    lambda n: st.tuples(*(st.integers(-1, node - 1) for node in range(n)))
)
shapes = st.tuples(st.integers(0, 70), st.integers(1, 6), st.none() | parents_of_trees)
"""Tokens held, tokens in a line, and the tree after them, if any."""


def read_of(shape: tuple[int, int, tuple[int, ...] | None]) -> Read:
    past, first_chain, parents = shape
    tokens = list(range(first_chain + len(parents or ())))
    return Read(1, past, tokens, None if parents is None else list(parents))


def in_two(read: Read, first: int) -> Read:
    """What is left to read of a tree once the first chain and `first` of its nodes were."""
    assert read.parents is not None
    first_chain = len(read.tokens) - len(read.parents)
    return Read(
        1,
        read.past + first_chain,
        read.tokens[first_chain + first :],
        read.parents,
        held=first,
    )


def span(read: Read, start: int = 3) -> Span:
    return Span(start, start + len(read.tokens), PageTable(4 * PAGE), read)


def text_before(read: Read, row: int) -> list[int]:
    """Places of the keys before a row in its text, itself last: the definition."""
    first_chain = len(read.tokens) - len(read.parents or [])
    if read.parents is None or row < first_chain:
        return list(range(read.past + row + 1))
    parent = read.parents[row - first_chain]
    return [
        *text_before(read, first_chain - 1 if parent < 0 else first_chain + parent),
        read.past + row,
    ]


@given(shapes, st.none() | st.integers(1, 20))
def test_row_sees_its_text_within_the_window(shape, window):
    read = read_of(shape)
    texts = [text_before(read, row) for row in range(len(read.tokens))]
    assert keys_of(span(read), window) == [text[-(window or 0) :] for text in texts]


@given(
    shapes.filter(lambda shape: bool(shape[2])),
    st.none() | st.integers(1, 20),
    st.data(),
)
def test_a_tree_may_be_read_in_pieces(shape, window, data):
    read = read_of(shape)
    first = data.draw(st.integers(0, len(read.parents) - 1))
    rest = in_two(read, first)
    later = len(rest.tokens)
    assert keys_of(span(rest), window) == keys_of(span(read), window)[-later:]
    assert [rest.past + depth for depth in rest.depths] == [
        read.past + depth for depth in read.depths[-later:]
    ]
    assert span(rest).length == span(read).length


@given(shapes)
def test_a_token_stands_where_its_text_is_long(shape):
    read = read_of(shape)
    assert [read.past + depth for depth in read.depths] == [
        len(text_before(read, row)) - 1 for row in range(len(read.tokens))
    ]


@given(shapes)
def test_a_span_covers_its_keys(shape):
    read = read_of(shape)
    one = span(read)
    assert one.length == read.past + len(read.tokens) <= one.padded == whole(one.length)
