"""The benchmark of an encoder-decoder: plain decoding's texts, accepted drafts."""

import gzip
import json
from dataclasses import replace

import pytest

import tiny_seq2seq
from foreword.prompts import load
from foreword_lab.bench.batches import together
from foreword_lab.bench.run import Options, run

PEERS = ("transformers.assisted", "transformers.lookup")
METHODS = "ngram;suffix;lm;cascade(suffix, lm);oracle;quantized".split(";")
METHODS = (*METHODS, *PEERS)


@pytest.fixture(scope="module")
def options(tmp_path_factory) -> Options:
    folder = tmp_path_factory.mktemp("bench")
    model = tiny_seq2seq.saved("flan-t5", folder / "model")
    lines = [
        {
            "messages": [
                {"role": "user", "content": "turn around " * 4},
                {"role": "assistant", "content": "x"},
            ]
        },
        {"messages": [{"role": "user", "content": "say it twice"}], "source": "again"},
    ]
    with gzip.open(folder / "asked.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, lines)))
    return Options(
        target=str(model),
        draft=str(model),
        dtype="float32",
        prompts=str(folder / "asked.jsonl.gz"),
        max_tokens=6,
        methods=METHODS,
        budget="heuristic",
    )


def test_prompts_come_from_a_file_of_records(options):
    found = load(options.prompts)
    assert [(prompt.id, prompt.source) for prompt in found] == [
        ("again/1", "again"),
        ("asked/0", "asked"),
    ]
    assert found[1].messages == ({"role": "user", "content": "turn around " * 4},)


def test_drafts_are_accepted_and_change_no_text(options):
    report = run(options)
    assert list(report.exclusions) == ["quantized"]
    assert "encoder-decoder" in report.exclusions["quantized"]
    assert {row.prompts for row in report.rows} == {2}
    rows = {(row.name, row.temperature): row for row in report.rows}
    assert {name for name, _ in rows} == {
        "plain",
        *METHODS,
        "transformers.generate",
    } - {"quantized"}
    for (name, temperature), row in rows.items():
        expected = None if name.startswith("transformers") and temperature else True
        assert row.same_text is expected, name
    for name in ("lm", "cascade(suffix, lm)", "oracle"):
        assert rows[name, 0.0].acceptance > 0.3
        assert rows[name, 0.0].tokens_per_pass > 1.2
    assert rows["plain", 0.0].tokens_per_pass == 1


@pytest.mark.slow
def test_batches_have_the_same_texts(options, monkeypatch):
    # the interval over several turns is tested in batches/test_together.py
    monkeypatch.setattr(together, "TURNS", 1)
    report = together.together(replace(options, temperatures=(1.0,)), [2])
    rows = [row for row in report.rows if row.name != "plain"]
    assert {row.name for row in rows} == {
        "ngram",
        "suffix",
        "lm",
        "cascade(suffix, lm)",
    }
    assert all(row.same_text for row in rows)
    assert all(row.accepted > 0 for row in rows if "lm" in row.name)
