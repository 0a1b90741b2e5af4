"""Commands for decoder-only models refuse an encoder-decoder by name, in one line."""

import json

import pytest

import tiny_seq2seq

DATA = ("--data", "data.jsonl", "--out", "out")


@pytest.mark.parametrize(
    "words",
    [
        ("doctor", "--model", "pegasus"),
        ("train", "dspark", "--model", "pegasus", *DATA),
        ("bench", "rules", "--model", "pegasus", "--draft", "pegasus"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_an_encoder_decoder_is_refused(here, words):
    tiny_seq2seq.saved("pegasus", here.folder / "pegasus")
    line = json.dumps({"text": "A text that is long enough to be cut in two. " * 4})
    (here.folder / "data.jsonl").write_text(f"{line}\n" * 120)
    found = here(*words)
    assert found.returncode in (1, 2)
    assert "is an encoder-decoder. Use a decoder-only model" in found.stderr
    assert not (here.folder / "out").exists()
