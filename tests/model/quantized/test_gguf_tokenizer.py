"""Tokenizers of newer architectures are those transformers builds for Llama."""

from pathlib import Path

import gguf
import numpy as np
import pytest

import gguf_files
from foreword.errors import ModelError
from foreword.model import load_tokenizer

TEXT = (
    "The year 2024 was  über\n\ngood, 12½ isn't DON'T McDonald it?/\n<|endoftext|> "
    "<|end|>cafe\u0301 123 4567"
)
FAMILIES = {
    "smollm3": "llama-bpe",
    "lfm2": "lfm2",
    "gpt-oss": "gpt-4o",
    "qwen35": "qwen35",
    "qwen35moe": "qwen35",
}


def words(plain: Path, path: Path, architecture: str, **more: object) -> Path:
    """A file with the tokenizer of another, some fields changed, and no model."""
    writer = gguf.GGUFWriter(path, architecture)
    for field in gguf.GGUFReader(plain).fields.values():
        value = more.get(field.name, field.contents())
        if field.name.startswith("tokenizer.") and value is not None:
            writer.add_key_value(
                field.name,
                value,
                field.types[0],
                field.types[-1] if len(field.types) > 1 else None,
            )
    if place := more.get("tokenizer.ggml.bos_token_id"):
        writer.add_bos_token_id(place)
    writer.add_tensor("token_embd.weight", np.zeros((8, 32), np.float32))
    gguf_files.finish(writer)
    return path


@pytest.mark.parametrize("architecture", FAMILIES)
def test_tokens_are_those_of_a_llama(plain, tmp_path, architecture):
    fields = {
        "tokenizer.ggml.pre": FAMILIES[architecture],
        "tokenizer.ggml.add_bos_token": architecture != "lfm2",
    }
    theirs = load_tokenizer(words(plain, tmp_path / "llama.gguf", "llama", **fields))
    ours = load_tokenizer(words(plain, tmp_path / "model.gguf", architecture, **fields))
    split = theirs.backend_tokenizer.pre_tokenizer.pre_tokenize_str(TEXT)
    assert ours.backend_tokenizer.pre_tokenizer.pre_tokenize_str(TEXT) == split
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours(TEXT).input_ids == theirs(TEXT).input_ids
    assert ours.decode(ours(TEXT).input_ids) == theirs.decode(theirs(TEXT).input_ids)
    for name in ("bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id"):
        assert getattr(ours, name) == getattr(theirs, name), name


def test_split_decides_about_a_first_token(plain, tmp_path):
    begins = {
        "tokenizer.ggml.pre": "lfm2",
        "tokenizer.ggml.add_bos_token": None,
        "tokenizer.ggml.bos_token_id": 2,
    }
    assert (
        load_tokenizer(words(plain, tmp_path / "model.gguf", "lfm2", **begins))(
            "The"
        ).input_ids[0]
        == 2
    )


def test_another_kind_of_tokenizer_is_refused(plain, tmp_path):
    path = words(
        plain, tmp_path / "model.gguf", "lfm2", **{"tokenizer.ggml.model": "llama"}
    )
    with pytest.raises(ModelError, match=r"'llama' is not supported .*tokenizer="):
        load_tokenizer(path)


def test_a_damaged_tokenizer_in_the_cache_is_made_anew(plain, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    want = load_tokenizer(plain)(TEXT).input_ids
    (kept,) = tmp_path.glob("foreword/tokenizers/*")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:100])
    assert load_tokenizer(plain)(TEXT).input_ids == want
    assert kept.read_bytes() == whole
    assert load_tokenizer(plain)(TEXT).input_ids == want


def test_a_file_without_merges_is_refused(plain, tmp_path):
    path = words(plain, tmp_path / "a.gguf", "llama", **{"tokenizer.ggml.merges": None})
    with pytest.raises(ModelError, match="the file holds none"):
        load_tokenizer(path)
