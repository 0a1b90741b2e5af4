"""GGUF files of any architecture are read by other engines as they are."""

from pathlib import Path

import pytest

import gguf_files
import starter
from foreword.errors import ModelError
from foreword_lab.bench.lineup import convertible_draft, weights
from foreword_lab.bench.peers import llamacpp
from foreword_lab.bench.peers.convert import note_vocabulary
from foreword_lab.bench.peers.engines import ASSISTED, NAMES
from foreword_lab.bench.peers.openvino import check_readable
from foreword_lab.bench.run import Options, run
from foreword_train.gguf.source import Source
from gguf_files.families import FAMILIES, random

TOKENS = 12


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """A Qwen2 in float32 with a tokenizer."""
    folder = tmp_path_factory.mktemp("file")
    words = gguf_files.small(folder)
    architecture, config, fields = FAMILIES["qwen2"]
    config = type(config)(**config.to_dict() | {"vocab_size": gguf_files.TOKENS})
    path = folder / "qwen2.gguf"
    return gguf_files.write(random(config), path, architecture, words=words, **fields)


@pytest.fixture(scope="module")
def source(file) -> Source:
    given = weights(str(file), None, "float32", None)
    return given.convertible(given.tokenizer(file))


def test_engines_get_the_file_of_any_architecture(file, source):
    assert llamacpp.file(source, pytest.fail) == file
    assert (source.context, source.few_bits) == (256, False)
    given = weights(str(file), str(file), "float32", None)
    assert convertible_draft(given).file == file
    held = given.held(("llamacpp.generate", "transformers.generate"))
    assert held == dict.fromkeys(
        ("foreword", "llamacpp", "draft models of other engines"), file.name
    ) | {"transformers": "float32, of dequantized weights"}
    assert weights(str(file), None, "float32", "llama-110m").file is None


def test_another_model_must_be_a_llama(tmp_path):
    random(FAMILIES["qwen2"][1]).save_pretrained(tmp_path)
    given = weights(str(tmp_path), None, "float32", None)
    with pytest.raises(ModelError, match="only a Llama is supported"):
        given.convertible(given.tokenizer(starter.target()))


def test_other_vocabulary_is_named(source):
    lines: list[str] = []
    note_vocabulary("engine", source, 7, lambda _: [1], lines.append)
    assert [source.name in line for line in lines] == [True, True]
    assert "engine has 7 tokens of" in lines[0]
    assert "engine tokenizes text of" in lines[1]
    lines.clear()

    def tokenize(text: str) -> list[int]:
        return source.tokenizer(text)["input_ids"]

    note_vocabulary("engine", source, gguf_files.TOKENS, tokenize, lines.append)
    assert lines == []


def test_openvino_refuses_types_that_it_does_not_read(file, tmp_path):
    with pytest.raises(ModelError, match=r"knows llama, qwen2, qwen3 in .*, not F32\."):
        check_readable(file)
    few = gguf_files.quantized(file, tmp_path / "few.gguf", "Q8_0")
    check_readable(few)


def test_report_compares_engines_on_the_file(file, needs):
    needs("llamacpp")
    options = Options(
        target=str(file),
        draft=str(file),
        methods=("none", *(name for name in NAMES if name.startswith("llamacpp"))),
        temperatures=(0.0,),
        limit_prompts=1,
        max_tokens=TOKENS,
        dtype="float32",
    )
    report = run(options)
    assert report.exclusions == {}
    assert "weights:" not in str(report.table().caption)
    rows = {row.name: row for row in report.rows}
    assert len(rows) == 4  # transformers, which dequantizes the file, was not named
    for row in rows.values():
        assert row.same_text
        assert row.load_seconds
        assert row.first_token_seconds
        assert row.decode_tokens_per_second
    assert rows[f"llamacpp.{ASSISTED}"].tokens_per_pass > 1.5
