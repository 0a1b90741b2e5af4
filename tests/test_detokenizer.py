"""The detokenizer: pushes and finish together are the decoded text, cut at the
first stop string.
"""

import pytest
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers.decoders import DecodeStream

import starter
from foreword.api.detokenizer import Detokenizer, byte_tokens, cut

SENTENCES = [
    "Die Grüße aus Köln sind schön, sagt Jürgen.",
    "The quick brown fox jumps over the lazy dog.",
    "A language model reads words and writes words; it doesn't stop.",
]
SPECIAL = ["<unk>", "<s>", "</s>"]


def byte_level() -> hf.PreTrainedTokenizerBase:
    return hf.AutoTokenizer.from_pretrained(starter.target())


def sentencepiece_like() -> hf.PreTrainedTokenizerBase:
    """Unigram over words that begin with a space mark, unknown characters as bytes,
    first space dropped.
    """
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    trained.train_from_iterator(SENTENCES, trainer)
    pieces = [
        (piece, -1.0 - id_ / 100)
        for piece, id_ in sorted(trained.get_vocab().items(), key=lambda item: item[1])
    ]
    pieces += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return wrapped(tokenizer)


def metaspace() -> hf.PreTrainedTokenizerBase:
    """The same words, without bytes, decoded by the Metaspace decoder."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.Metaspace(),
        decoders.Metaspace(),
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return wrapped(tokenizer)


def wordpiece() -> hf.PreTrainedTokenizerBase:
    """Words whose inner pieces begin with ##; the decoder puts the spaces and mends
    punctuation.
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = (
        normalizers.Lowercase(),
        pre_tokenizers.BertPreTokenizer(),
    )
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=120, special_tokens=SPECIAL, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return wrapped(tokenizer)


def wrapped(tokenizer: Tokenizer) -> hf.PreTrainedTokenizerBase:
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def python_only() -> hf.PreTrainedTokenizerBase:
    """A tokenizer without a Rust half: bytes, and what is no character is left out
    instead of replaced.
    """
    return hf.ByT5Tokenizer()


TOKENIZERS = {
    build.__name__: build()
    for build in (byte_level, sentencepiece_like, metaspace, wordpiece, python_only)
}
BYTE_LEVEL, BYTE_FALLBACK = TOKENIZERS["byte_level"], TOKENIZERS["sentencepiece_like"]


def decode(tokenizer: hf.PreTrainedTokenizerBase, tokens: list[int], skip: bool) -> str:
    return str(
        tokenizer.decode(
            tokens, skip_special_tokens=skip, clean_up_tokenization_spaces=False
        )
    )


def read(reader: Detokenizer, tokens: list[int]) -> tuple[str, bool]:
    text, stopped = "", False
    for token in tokens:
        piece, stopped = reader.push(token)
        text += piece
        if stopped:
            break
    return text + reader.finish(), stopped


@st.composite
def token_lists(draw: st.DrawFn, tokenizer: hf.PreTrainedTokenizerBase) -> list[int]:
    """Token ids of real text, single bytes of any value, special tokens and anything
    else, in any order.
    """
    low = (
        tokenizer.encode("äß€😀\n", add_special_tokens=False)
        + list(byte_tokens(tokenizer))[::7]
    )
    text = st.sampled_from(
        [*SENTENCES, "Ünïcödé 😀👩‍👩‍👧", "日本語", " ", "  a", "\ufffd"]
    ).map(lambda words: tokenizer.encode(words, add_special_tokens=False))
    loose = st.lists(
        st.one_of(
            st.sampled_from(low), st.integers(0, len(tokenizer) - 1), st.integers(0, 2)
        ),
        max_size=6,
    )
    return [
        token
        for part in draw(st.lists(st.one_of(text, loose), max_size=4))
        for token in part
    ]


@st.composite
def cases(
    draw: st.DrawFn,
) -> tuple[hf.PreTrainedTokenizerBase, list[int], bool, tuple[str, ...]]:
    """A tokenizer, output tokens, whether to skip special tokens, and stop strings,
    most of them from the text.
    """
    tokenizer = draw(st.sampled_from(list(TOKENIZERS.values())))
    tokens, skip = draw(token_lists(tokenizer)), draw(st.booleans())
    text = decode(tokenizer, tokens, skip)
    places = st.tuples(st.integers(0, len(text)), st.integers(1, 8))
    inside = places.map(lambda place: text[place[0] : place[0] + place[1]])
    words = draw(
        st.lists(st.one_of(inside, st.text("a .ü\ufffd", max_size=3)), max_size=3)
    )
    return tokenizer, tokens, skip, tuple(word for word in words if word)


@settings(max_examples=300, deadline=None)
@given(cases(), st.booleans())
def test_pieces_join_to_the_text_up_to_the_stop_string(case, include: bool) -> None:
    tokenizer, tokens, skip, stop = case
    whole = decode(tokenizer, tokens, skip)
    text, stopped = read(Detokenizer(tokenizer, [], stop, skip, include), tokens)
    assert text == cut(whole, stop, include)
    assert not stopped or any(word in whole for word in stop)


@settings(max_examples=150, deadline=None)
@given(cases(), st.booleans())
def test_shown_text_is_never_taken_back(case, include: bool) -> None:
    tokenizer, tokens, skip, stop = case
    reader, shown = Detokenizer(tokenizer, [], stop, skip, include), ""
    for done, token in enumerate(tokens, 1):
        piece, stopped = reader.push(token)
        shown += piece
        whole = cut(decode(tokenizer, tokens, skip), stop, include)
        assert whole.startswith(shown)
        if stopped:
            assert any(word in decode(tokenizer, tokens[:done], skip) for word in stop)
            break


@settings(max_examples=150, deadline=None)
@given(
    cases(),
    st.sampled_from(["", *SENTENCES, "schön " * 9, "<s>", "</s><s>", " "]),
    st.integers(0, 20),
)
def test_output_follows_the_prompt_as_in_the_decode_of_both(
    case, words: str, special: int
) -> None:
    tokenizer, tokens, skip, stop = case
    prompt = tokenizer.encode(words, add_special_tokens=False) + [1] * special
    known = len(decode(tokenizer, prompt, skip))
    text, _ = read(Detokenizer(tokenizer, prompt, stop, skip), tokens)
    assert text == cut(decode(tokenizer, prompt + tokens, skip)[known:], stop)


@pytest.mark.parametrize(
    "name", [name for name, tokenizer in TOKENIZERS.items() if tokenizer.is_fast]
)
def test_pieces_come_as_early_as_from_decode_stream(name):
    tokenizer = TOKENIZERS[name]
    tokens = tokenizer.encode(" ".join(SENTENCES), add_special_tokens=False)
    reader, stream = (
        Detokenizer(tokenizer, [], (), False),
        DecodeStream(ids=[], skip_special_tokens=False),
    )
    held = byte_tokens(tokenizer)
    pieces = [reader.push(token)[0] for token in tokens]
    expected = [
        stream.step(tokenizer.backend_tokenizer, token) or "" for token in tokens
    ]
    assert not held.intersection(tokens)
    assert pieces == expected


def test_a_character_of_several_tokens_comes_with_its_last_byte():
    tokens = BYTE_LEVEL.encode("😀")
    reader = Detokenizer(BYTE_LEVEL, [], (), True)
    assert len(tokens) > 1
    assert [reader.push(token)[0] for token in tokens] == [""] * (len(tokens) - 1) + [
        "😀"
    ]
    assert reader.finish() == ""


def test_an_unfinished_character_comes_at_the_end_and_once():
    tokens = BYTE_LEVEL.encode("a😀")[:-1]
    reader = Detokenizer(BYTE_LEVEL, [], (), True)
    assert "".join(reader.push(token)[0] for token in tokens) == "a"
    assert reader.finish() == decode(BYTE_LEVEL, tokens, True)[1:] == "\ufffd"
    assert reader.finish() == ""


def test_a_run_of_byte_tokens_waits_for_its_end():
    first, second = BYTE_FALLBACK.convert_tokens_to_ids(["<0xC3>", "<0xA9>"])
    broken = [first, second, first]
    reader = Detokenizer(BYTE_FALLBACK, [], (), True)
    assert [reader.push(token)[0] for token in broken] == ["", "", ""]
    assert reader.finish() == "\ufffd" * 3


def test_the_space_between_prompt_and_output_stays():
    prompt, tokens = (
        BYTE_FALLBACK.encode(words, add_special_tokens=False)
        for words in ("The", "quick fox")
    )
    assert read(Detokenizer(BYTE_FALLBACK, prompt, (), True), tokens) == (
        " quick fox",
        False,
    )
    assert read(Detokenizer(BYTE_FALLBACK, [], (), True), tokens) == (
        "quick fox",
        False,
    )


def test_prompt_that_ends_inside_a_character():
    tokens = BYTE_LEVEL.encode("😀")
    text, _ = read(
        Detokenizer(BYTE_LEVEL, tokens[:-1], (), True),
        [tokens[-1], *BYTE_LEVEL.encode("ok")],
    )
    assert text == "\ufffdok"


@pytest.mark.parametrize(
    ("stop", "shown"),
    [
        (("stop",), "one "),
        (("p two",), "one sto"),
        (("one",), ""),
        (("stop two three", "top"), "one s"),
        (("top", "stop", "p"), "one "),
        (("nowhere", "two!"), "one stop two three"),
    ],
)
def test_text_ends_before_the_stop_string_that_is_completed_first(stop, shown):
    tokens = BYTE_LEVEL.encode("one stop two three")
    text, stopped = read(Detokenizer(BYTE_LEVEL, [], stop, True), tokens)
    assert text == shown
    assert stopped == (shown != "one stop two three")


def test_begun_stop_string_is_held_back():
    letters = [BYTE_LEVEL.encode(letter)[0] for letter in "aababac"]
    reader = Detokenizer(BYTE_LEVEL, [], ("abac",), True)
    assert [reader.push(token) for token in letters] == [
        ("", False),
        ("a", False),
        ("", False),
        ("", False),
        ("ab", False),
        ("", False),
        ("", True),
    ]
    assert reader.finish() == ""


def test_nothing_may_follow_a_stop_string():
    reader = Detokenizer(BYTE_LEVEL, [], ("a",), True)
    token = BYTE_LEVEL.encode("a")[0]
    assert reader.push(token) == ("", True)
    with pytest.raises(AssertionError, match="a stop string has ended this text"):
        reader.push(token)


@pytest.mark.parametrize(
    ("stop", "text", "found"),
    [
        (("ba", "a"), "xxba", "ba"),
        (("a", "ba"), "xxba", "ba"),
        (("b", "ba"), "xxba", "b"),
        (("cd", "never"), "abcdef", "cd"),
        (("never",), "abc", None),
    ],
)
def test_stop_string_that_ended_the_text_is_named(stop, text, found):
    reader = Detokenizer(BYTE_LEVEL, [], stop, True)
    for token in BYTE_LEVEL(text)["input_ids"]:
        _, stopped = reader.push(token)
        if stopped:
            break
    assert reader.stop == found
