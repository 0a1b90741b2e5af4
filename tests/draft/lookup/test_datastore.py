"""The datastore: it finds what a plain search finds, and others' are refused."""

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast

import foreword.draft.lookup.datastore as place_of_datastore
from foreword.draft.lookup.datastore import (
    DEPTH,
    META,
    ORDER,
    TOKENS,
    Datastore,
    Meta,
    build,
    fingerprint,
)
from foreword.errors import InvalidRequest, ModelError, VocabularyMismatch
from running import tokenizer


@cache
def letters(size: int = 26) -> PreTrainedTokenizerFast:
    """A tokenizer of letters: a = 0, b = 1 … with `size` ids, most without one."""
    vocab = {
        chr(ord("a") + token) if token < 26 else f"<{token}>": token
        for token in range(size)
    }
    made = Tokenizer(WordLevel(vocab, "a"))
    made.pre_tokenizer = Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made)


def ids(text: str) -> list[int]:
    return [ord(letter) - ord("a") for letter in text]


def made(folder: Path, *texts: str, size: int = 26) -> Datastore:
    build([("here", text) for text in texts], letters(size), folder / "store")
    return Datastore(folder / "store")


def searched(texts: list[str], end: str) -> list[tuple[int, str]]:
    """The definition: every place in every text and its agreement; longest first."""
    found = []
    for text in texts:
        for place in range(1, len(text)):
            agree = 0
            while (
                agree < min(place, len(end), DEPTH)
                and text[place - agree - 1] == end[-agree - 1]
            ):
                agree += 1
            if agree:
                found.append((agree, text[place:]))
    return sorted(found, reverse=True)


few_letters = st.text("ab", max_size=40) | st.text("abcd", max_size=40)


@settings(max_examples=50)  # the large vocabulary takes its time
@given(
    st.lists(few_letters, min_size=1, max_size=6),
    few_letters,
    st.sampled_from([26, 70_000]),
    st.integers(1, 60),
)
def test_it_finds_what_a_plain_search_finds(tmp_path_factory, texts, end, size, bucket):
    expected = searched(texts, end)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place_of_datastore, "_BUCKET", bucket)
        patch.setattr(place_of_datastore, "_SLICE", 7)
        patch.setattr(place_of_datastore, "_TEXTS", 2)
        try:
            store = made(tmp_path_factory.mktemp("store"), *texts, size=size)
        except InvalidRequest:
            assert all(len(text) < 2 for text in texts)
            return
    assert store.meta.token.itemsize == (2 if size == 26 else 4)
    places, agree = store.nearest(ids(end), 300)
    assert agree.tolist() == [length for length, _ in expected]
    rows = store.after(places, 50)
    after = ["".join(chr(ord("a") + token) for token in row) for row in rows]
    assert sorted(zip(agree.tolist(), after, strict=True), reverse=True) == expected
    for count in (1, 3):
        assert store.nearest(ids(end), count)[1].tolist() == agree[:count].tolist(), (
            "the longest matches, if few"
        )
        assert store.after(places, count) == [ids(text[:count]) for text in after]


@given(st.lists(st.integers(0, 6), min_size=2, max_size=60))
def test_places_are_in_order_of_what_stands_before_them(tmp_path_factory, tokens):
    text = "".join(chr(ord("a") + token) for token in tokens)
    store = made(tmp_path_factory.mktemp("store"), text)
    assert sorted(store.order.tolist()) == list(range(DEPTH + 1, DEPTH + len(text)))
    order = store.order.tolist()
    before = [store.tokens[place - DEPTH : place][::-1].tolist() for place in order]
    assert before == sorted(before)


def test_texts_are_never_joined(tmp_path):
    store = made(tmp_path, "abc", "def")
    assert store.nearest(ids("c"), 9)[0].tolist() == []
    places, _ = store.nearest(ids("ab"), 9)
    assert store.after(places, 9) == [ids("c")]


def test_tokens_that_corpus_cannot_hold_are_looked_up_in_vain(tmp_path):
    store = made(tmp_path, "abc")
    for strange in (26, 0xFFFF, 200_000):
        assert store.nearest([0, strange], 9)[0].tolist() == []
        places, agree = store.nearest([strange, 0], 9)
        assert (store.after(places, 9), agree.tolist()) == ([ids("bc")], [1])
    assert store.nearest([], 9)[0].tolist() == []


def test_it_says_what_it_holds(tmp_path):
    seen: list[float] = []
    meta = build(
        [("x", "ab"), ("y", "cd"), ("x", "e")],
        letters(),
        tmp_path / "new" / "store",
        progress=seen.append,
    )
    assert meta == Meta(1, 26, DEPTH + 8, 2, fingerprint(letters()), {"x": 2, "y": 1})
    assert Datastore(tmp_path / "new" / "store").meta == meta
    assert seen[-1] == 1.0
    assert seen == sorted(seen)


def test_a_tokenizer_is_known_by_its_ids(tmp_path):
    build([("here", "words of a text")], tokenizer(), tmp_path / "store")
    store = Datastore(tmp_path / "store", tokenizer())
    text = tokenizer()("words of a text")["input_ids"]
    assert store.after(*(store.nearest(text[:-1], 1)[0], 1)) == [[text[-1]]]
    with pytest.raises(VocabularyMismatch, match=r"another tokenizer.*foreword index"):
        Datastore(tmp_path / "store", letters())
    assert fingerprint(letters(26)) != fingerprint(letters(27))


def test_a_failed_build_leaves_nothing(tmp_path):
    def texts():
        yield "here", "abcdef"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(texts(), letters(), tmp_path / "store")
    for nothing in ([], [("here", "a"), ("here", "")]):
        with pytest.raises(InvalidRequest, match="no text has two tokens"):
            build(nothing, letters(), tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_overwritten(tmp_path):
    made(tmp_path, "abc")
    before = {path: path.read_bytes() for path in (tmp_path / "store").iterdir()}
    with pytest.raises(InvalidRequest, match="exists already"):
        build([("here", "xyz")], letters(), tmp_path / "store")
    assert {
        path: path.read_bytes() for path in (tmp_path / "store").iterdir()
    } == before


def test_no_folder_is_a_wrong_request(tmp_path):
    with pytest.raises(InvalidRequest, match="foreword index"):
        Datastore(tmp_path / "nowhere")


def changed(**facts: object):
    def change(folder: Path) -> None:
        meta = json.loads((folder / META).read_text())
        (folder / META).write_text(json.dumps(meta | facts))

    return change


def cut(name: str):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / META).unlink(), "meta.json is unreadable"),
        (lambda folder: (folder / META).write_text("{"), "meta.json is unreadable"),
        (lambda folder: (folder / META).write_text("[]"), "meta.json is unreadable"),
        (changed(version=2), "version 2"),
        (changed(colour="blue"), "damaged"),
        (changed(tokens="many"), "damaged"),
        (changed(sources=[]), "damaged"),
        (cut(TOKENS), "tokens.bin has"),
        (cut(ORDER), "order.bin has"),
        (lambda folder: (folder / ORDER).unlink(), "order.bin has 0 bytes"),
    ],
)
def test_a_damaged_datastore_is_refused_in_words(tmp_path, damage, words):
    made(tmp_path, "abcabc")
    damage(tmp_path / "store")
    with pytest.raises(ModelError, match=words) as refused:
        Datastore(tmp_path / "store")
    assert "build it again" in str(refused.value).lower()


def test_opening_reads_nothing(tmp_path):
    made(tmp_path, "abcabc")
    store = Datastore(tmp_path / "store")
    for data in (store.tokens, store.order):
        while not isinstance(data, np.memmap):
            assert data.base is not None, "a copy in memory"
            data = data.base
        assert not data.flags.writeable
