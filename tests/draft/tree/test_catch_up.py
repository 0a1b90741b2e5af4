"""Unread text is read once, in order, in chunks; the end is left to the caller."""

import pytest

from foreword.draft.tree.drafter import CHUNK, catch_up
from foreword.model import Read


@pytest.mark.parametrize("missing", [1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 7])
def test_every_token_is_read_once_and_in_order(missing):
    tokens, past = list(range(missing)), 9
    chunks: list[Read] = []
    end = catch_up(4, past, tokens, chunks.append)
    read = [*chunks, end]
    assert [token for one in read for token in one.tokens] == tokens
    assert [one.past for one in read] == list(range(past, past + missing, CHUNK))
    assert {one.id for one in read} == {4}


def test_only_the_end_is_scored():
    chunks: list[Read] = []
    end = catch_up(4, 0, [0] * (2 * CHUNK + 1), chunks.append)
    assert [one.keep for one in chunks] == [0, 0]
    assert (end.keep, len(end.tokens)) == (1, 1)
