"""The detokenizer: all pushes are the decoded text, cut at the first stop string."""

from functools import partial

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
TRAINED = dict(vocab_size=120, special_tokens=SPECIAL, show_progress=False)


def byte_level() -> hf.PreTrainedTokenizerBase:
    return hf.AutoTokenizer.from_pretrained(starter.target())


def sentencepiece_like() -> hf.PreTrainedTokenizerBase:
    """Unigram over words after a space mark, unknown characters as bytes."""
    trained = Tokenizer(models.Unigram())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(unk_token="<unk>", **TRAINED)
    trained.train_from_iterator(SENTENCES, trainer)
    known = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    pieces = [(piece, -1.0 - id_ / 100) for piece, id_ in known]
    pieces += [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    spaces, strip = decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)
    steps = [spaces, decoders.ByteFallback(), decoders.Fuse(), strip]
    tokenizer.decoder = decoders.Sequence(steps)
    return wrapped(tokenizer)


def metaspace() -> hf.PreTrainedTokenizerBase:
    """The same words, without bytes, decoded by the Metaspace decoder."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(unk_token="<unk>", **TRAINED)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return wrapped(tokenizer)


def wordpiece() -> hf.PreTrainedTokenizerBase:
    """Words with inner pieces ##; the decoder adds spaces and mends punctuation."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(**TRAINED)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return wrapped(tokenizer)


def wrapped(tokenizer: Tokenizer) -> hf.PreTrainedTokenizerBase:
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def python_only() -> hf.PreTrainedTokenizerBase:
    """A tokenizer without Rust: bytes; what is no character is left out."""
    return hf.ByT5Tokenizer()


TOKENIZERS = {
    build.__name__: build()
    for build in (byte_level, sentencepiece_like, metaspace, wordpiece, python_only)
}
BYTE_LEVEL, BYTE_FALLBACK = TOKENIZERS["byte_level"], TOKENIZERS["sentencepiece_like"]


def decode(tokenizer: hf.PreTrainedTokenizerBase, tokens: list[int], skip: bool) -> str:
    options = dict(skip_special_tokens=skip, clean_up_tokenization_spaces=False)
    return str(tokenizer.decode(tokens, **options))


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
    """Token ids of real text, single bytes, special tokens and others, mixed."""
    encoded = partial(tokenizer.encode, add_special_tokens=False)
    low = encoded("äß€😀\n") + list(byte_tokens(tokenizer))[::7]
    words = [*SENTENCES, "Ünïcödé 😀👩‍👩‍👧", "日本語", " ", "  a", "\ufffd"]
    text = st.sampled_from(words).map(encoded)
    token = st.integers(0, len(tokenizer) - 1)
    one = st.one_of(st.sampled_from(low), token, st.integers(0, 2))
    loose = st.lists(one, max_size=6)
    parts = draw(st.lists(st.one_of(text, loose), max_size=4))
    return [token for part in parts for token in part]


@st.composite
def cases(
    draw: st.DrawFn,
) -> tuple[hf.PreTrainedTokenizerBase, list[int], bool, tuple[str, ...]]:
    """A tokenizer, output tokens, whether to skip special ones, and stop strings."""
    tokenizer = draw(st.sampled_from(list(TOKENIZERS.values())))
    tokens, skip = draw(token_lists(tokenizer)), draw(st.booleans())
    text = decode(tokenizer, tokens, skip)
    places = st.tuples(st.integers(0, len(text)), st.integers(1, 8))
    inside = places.map(lambda place: text[place[0] : place[0] + place[1]])
    stop = st.one_of(inside, st.text("a .ü\ufffd", max_size=3))
    words = draw(st.lists(stop, max_size=3))
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
    reader = Detokenizer(tokenizer, [], (), False)
    stream = DecodeStream(ids=[], skip_special_tokens=False)
    pieces = [reader.push(token)[0] for token in tokens]
    backend = tokenizer.backend_tokenizer
    expected = [stream.step(backend, token) or "" for token in tokens]
    assert not byte_tokens(tokenizer).intersection(tokens)
    assert pieces == expected


def test_a_character_of_several_tokens_comes_with_its_last_byte():
    tokens = BYTE_LEVEL.encode("😀")
    reader = Detokenizer(BYTE_LEVEL, [], (), True)
    assert len(tokens) > 1
    pieces = [reader.push(token)[0] for token in tokens]
    assert pieces == [""] * (len(tokens) - 1) + ["😀"]
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
    for before, text in ((prompt, " quick fox"), ([], "quick fox")):
        reader = Detokenizer(BYTE_FALLBACK, before, (), True)
        assert read(reader, tokens) == (text, False)


def test_prompt_that_ends_inside_a_character():
    tokens = BYTE_LEVEL.encode("😀")
    reader = Detokenizer(BYTE_LEVEL, tokens[:-1], (), True)
    text, _ = read(reader, [tokens[-1], *BYTE_LEVEL.encode("ok")])
    assert text == "\ufffdok"


@pytest.mark.parametrize(
    ("stop", "text", "shown", "found"),
    [
        (("stop",), "one stop two three", "one ", "stop"),
        (("p two",), "one stop two three", "one sto", "p two"),
        (("one",), "one stop two three", "", "one"),
        (("stop two three", "top"), "one stop two three", "one s", "top"),
        (("top", "stop", "p"), "one stop two three", "one ", "stop"),
        (("nowhere", "two!"), "one stop two three", "one stop two three", None),
        (("ba", "a"), "xxba", "xx", "ba"),
        (("a", "ba"), "xxba", "xx", "ba"),
        (("b", "ba"), "xxba", "xx", "b"),
        (("cd", "never"), "abcdef", "ab", "cd"),
    ],
)
def test_text_ends_before_the_stop_string_that_is_completed_first(
    stop, text, shown, found
):
    reader = Detokenizer(BYTE_LEVEL, [], stop, True)
    assert read(reader, BYTE_LEVEL.encode(text)) == (shown, found is not None)
    assert reader.stop == found


def test_begun_stop_string_is_held_back():
    letters = [BYTE_LEVEL.encode(letter)[0] for letter in "aababac"]
    reader = Detokenizer(BYTE_LEVEL, [], ("abac",), True)
    pushed = [reader.push(token) for token in letters]
    assert [text for text, _ in pushed] == ["", "a", "", "", "ab", "", ""]
    assert [stopped for _, stopped in pushed] == [False] * 6 + [True]
    assert reader.finish() == ""


def test_nothing_may_follow_a_stop_string():
    reader = Detokenizer(BYTE_LEVEL, [], ("a",), True)
    token = BYTE_LEVEL.encode("a")[0]
    assert reader.push(token) == ("", True)
    with pytest.raises(AssertionError, match="a stop string has ended this text"):
        reader.push(token)
