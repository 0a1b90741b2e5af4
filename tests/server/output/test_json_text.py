"""The grammar of JSON agrees with Python's, character by character."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword_server.output.json_text import DEPTH, value
from foreword_server.output.reader import Mismatch, Reader

values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)
END = "\x00"
"""What can be in no JSON, so that a number ends."""


def read(text: str) -> bool:
    """Whether the text, cut into characters, is one value."""
    reader = Reader()
    reading = value(reader)
    try:
        for character in text + END:
            next(reading)
            reader.feed(character)
        next(reading)
    except StopIteration:
        return reader.held == text
    except Mismatch:
        return False
    raise AssertionError("the grammar wants more after what cannot be JSON")


def python_reads(text: str) -> bool:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return text == text.strip(" \t\r\n")


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_what_python_writes_is_read(found: object, ascii: bool, indent: int | None):
    assert read(json.dumps(found, ensure_ascii=ascii, indent=indent))


@given(
    values,
    st.integers(0),
    st.sampled_from([*'{}[]",:\\ \n01.eE-+untrfab', "\x01", "é"]),
    st.integers(0, 2),
)
def test_what_was_spoilt_is_read_where_python_reads_it(
    found: object, place: int, put: str, gone: int
):
    text = json.dumps(found)
    place %= len(text) + 1
    spoilt = text[:place] + put + text[place + gone :]
    assert read(spoilt) == python_reads(spoilt)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NaN",
        "Infinity",
        "01",
        "1.",
        ".5",
        "+1",
        "'a'",
        "{a:1}",
        "[1,]",
        '{"a":1,}',
        "tru",
        r'"\x"',
        r'"\u12g4"',
        '"a',
        '"\n"',
        '{"a" 1}',
        "[1 2]",
        "-",
        "1e",
        "nul",
    ],
)
def test_what_is_no_json_is_refused(text: str):
    assert not read(text)
    assert not python_reads(text)


def test_nesting_has_an_end():
    assert read("[" * DEPTH + "]" * DEPTH)
    assert not read("[" * (DEPTH + 1) + "]" * (DEPTH + 1))
