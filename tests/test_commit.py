"""What is appended, and where it ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.engine.commit import commit
from foreword.types import Request, SamplingParams, TokenLogprob


class Letters:
    """Token n reads as the n-th letter; "z" completes the stop string "#"."""

    stop: str | None = None

    def push(self, token: int) -> tuple[str, bool]:
        letter = chr(97 + token)
        if letter != "z":
            return letter, False
        self.stop = "#"
        return "", True

    def finish(self) -> str:
        return "."


def request(**params: object) -> Request:
    asked = SamplingParams(**({"max_tokens": 8} | params))
    return Request(1, [9, 9], 2, asked, seed=0, eos=frozenset([4]), reader=Letters())


def keep(one: Request, tokens: list[int]):
    origins = ["accepted"] * (len(tokens) - 1) + ["bonus"]
    return commit(
        one,
        tokens,
        origins,
        [TokenLogprob(token, -1.0) for token in tokens],
        len(tokens) - 1,
    )


@pytest.mark.parametrize(
    ("params", "tokens", "kept", "text", "reason"),
    [
        ({}, [0, 1, 2], 3, "abc", None),
        # end of text: what was held back is certain now, the token has no text
        ({}, [0, 4, 2], 2, "a.", "stop"),
        ({"ignore_eos": True}, [0, 4, 2], 3, "aec", None),
        ({"stop_token_ids": (1,), "ignore_eos": True}, [0, 1, 2], 2, "a.", "stop"),
        # a stop string: the reader has said all there is
        ({}, [0, 25, 2], 2, "a", "stop"),
        ({"max_tokens": 2}, [0, 1, 2], 2, "ab.", "length"),
        # a stop on the last token is a stop
        ({"max_tokens": 2}, [0, 4, 2], 2, "a.", "stop"),
        ({"max_tokens": 2}, [0, 25, 2], 2, "a", "stop"),
    ],
)
def test_block_is_cut_at_first_token_that_ends_sequence(
    params, tokens, kept, text, reason
):
    one = request(**params)
    delta = keep(one, tokens)
    assert list(delta.tokens) == one.tokens[2:] == tokens[:kept]
    assert (delta.text, "".join(delta.pieces), len(delta.pieces)) == (text, text, kept)
    assert len(delta.origins) == len(delta.logprobs) == one.stats.tokens == kept
    assert delta.finish_reason == one.finish_reason == reason
    assert (delta.id, delta.drafted) == (1, 2)


@given(st.lists(st.integers(0, 25), min_size=1, max_size=12), st.data())
def test_blocks_do_not_matter(tokens, data):
    """However tokens are cut into rounds, the sequence and its text are the same."""
    whole, parts = request(), request()
    text = keep(whole, tokens).text
    said = ""
    left = list(tokens)
    while left and not parts.finish_reason:
        size = data.draw(st.integers(1, len(left)))
        said += keep(parts, left[:size]).text
        left = left[size:]
    assert parts.tokens == whole.tokens
    assert said == text
    assert parts.finish_reason == whole.finish_reason


def test_a_sequence_without_a_reader_has_no_text():
    one = request()
    one.reader = None
    assert keep(one, [0, 4]).text == ""
    assert one.finish_reason == "stop"
