"""Tokens' meaning in vocabularies of both kinds; texts survive a round trip."""

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer
from transformers import PreTrainedTokenizerFast

from foreword.draft.cross_vocab.vocabulary import Vocabulary
from running import tokenizer

SENTENCE = "Ein Fluß, 12 Äpfel\n\tund  ein Häuschen: 你好 🙂!"


@cache
def byte_level() -> Vocabulary:
    return Vocabulary(tokenizer(), 8200)


@cache
def sentencepiece() -> Vocabulary:
    """▁ for a space, one before every text, bytes, and an added newline."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "a", "b", "Ġ", "▁a", "ab", "▁ab", "b▁"]
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b"), ("b", "▁")]
    model = models.BPE(
        {word: token for token, word in enumerate(words)},
        merges,
        byte_fallback=True,
        unk_token="<unk>",
    )
    raw = RawTokenizer(model)
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    raw.add_tokens([AddedToken("\n\n", normalized=False)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    return Vocabulary(fast, len(words) + 1)


def test_byte_level_pieces_are_the_bytes_that_decoding_gives():
    lexicon, ids = byte_level(), tokenizer()(SENTENCE)["input_ids"]
    assert lexicon.text(ids) == SENTENCE.encode()
    assert {lexicon.pieces[token] for token in range(4, 260)} == {
        bytes([byte]) for byte in range(256)
    }
    assert lexicon.pieces[8192:] == (None,) * 8
    assert lexicon.roles == {"pad": 0, "eos": 0}


def test_special_tokens_stand_for_no_text():
    lexicon = byte_level()
    assert lexicon.special(1)
    assert not lexicon.special(300)
    assert lexicon.text([1, *lexicon.spell(b"ab"), 0]) == b"ab"
    assert lexicon.ids["<|user|>"] == 1
    assert b"<|user|>" not in lexicon.ids


def test_sentencepiece_spells_spaces_and_bytes_in_its_own_way():
    lexicon = sentencepiece()
    assert (
        lexicon.text(
            lexicon.ids[piece] for piece in (b" ab", b"b ", "Ġ".encode(), b"\n\n")
        )
        == b" abb \xc4\xa0\n\n"
    )
    assert lexicon.pieces[3 + 0x41] == b"A"
    assert lexicon.pieces[lexicon.ids[b"a"]] == b"a"
    assert lexicon.ids[b"a"] > 259, (
        "a character is written as its token, not as its byte"
    )
    assert lexicon.roles == {"unk": 0, "bos": 1, "eos": 2}


@pytest.mark.parametrize("lexicon", [byte_level, sentencepiece])
@given(text=st.binary(max_size=12) | st.text("ab 😀é\n", max_size=12).map(str.encode))
def test_any_bytes_can_be_spelt(lexicon, text):
    assert lexicon().text(lexicon().spell(text)) == text


@pytest.mark.parametrize("lexicon", [byte_level, sentencepiece])
@given(st.text("ab 😀é\n", max_size=12).map(str.encode), st.integers(0, 12))
def test_what_follows_a_text_is_exactly_what_follows(lexicon, text, place):
    assert lexicon().text(lexicon().follow(text[:place], text[place:])) == text[place:]


def test_what_follows_is_spelt_as_the_tokenizer_spells_the_whole():
    lexicon, whole = byte_level(), tokenizer()(SENTENCE)["input_ids"]
    for place in (3, 5, 9):
        before, after = lexicon.text(whole[:place]), lexicon.text(whole[place:])
        assert lexicon.follow(before, after) == whole[place:]
    theirs = sentencepiece()
    assert [theirs.pieces[token] for token in theirs.follow(b"a", b"ab")] == [b"ab"], (
        "no space where the text goes on"
    )
    assert [theirs.pieces[token] for token in theirs.follow(b"", b" ab")] == [b" ab"]


def test_where_tokens_run_across_border_longest_that_fit_are_taken():
    theirs = sentencepiece()
    tokens = theirs.follow(b" a", b"ba")
    assert [theirs.pieces[token] for token in tokens] == [b"b", b"a"]


def test_text_that_reads_like_a_special_token_stays_text():
    lexicon = byte_level()
    assert lexicon.text(lexicon.follow(b"so: ", b"<|end|>")) == b"<|end|>"
