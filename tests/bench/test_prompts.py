"""The prompts of the figures: fixed in number, source, length and order."""

import gzip
import json
from collections import Counter
from importlib.resources import files

import pytest
from transformers import AutoTokenizer

import starter
from foreword.errors import InvalidRequest
from foreword.prompts import load

KINDS = ("in-domain", "out-of-domain")
ANSWERED = [
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "1"},
    {"role": "user", "content": "two"},
]


def test_in_domain_takes_three_from_each_source():
    assert Counter(Counter(prompt.source for prompt in load("in-domain")).values()) == {
        3: 21
    }


def test_out_of_domain_mixes_three_public_benchmarks():
    prompts = load("out-of-domain")
    assert Counter(prompt.source for prompt in prompts) == {
        "mt_bench": 12,
        "human_eval": 6,
        "gsm8k_test": 6,
    }
    assert (
        len({prompt.category for prompt in prompts if prompt.source == "mt_bench"}) == 8
    )


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_are_short_unique_user_turns(kind):
    tokenizer = AutoTokenizer.from_pretrained(starter.target(), local_files_only=True)
    prompts = load(kind)
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    for prompt in prompts:
        assert prompt.messages[-1]["role"] == "user"
        text = tokenizer.apply_chat_template(
            list(prompt.messages), add_generation_prompt=True, tokenize=False
        )
        assert len(tokenizer(text).input_ids) <= 300


def test_the_licence_of_every_source_is_named():
    readme = (files("foreword.prompts") / "data" / "README.md").read_text(
        encoding="utf-8"
    )
    rows = [line for line in readme.splitlines() if line.startswith("| ")]
    named = {row.split("|")[1].strip() for row in rows}
    assert {prompt.source for kind in KINDS for prompt in load(kind)} <= named


@pytest.mark.usefixtures("unchecked")
def test_unknown_kind_names_the_known_ones():
    with pytest.raises(InvalidRequest, match="in-domain, out-of-domain"):
        load("indomain")


@pytest.mark.parametrize(
    "record",
    [
        {"messages": ANSWERED, "prompt": "not this"},
        {"turns": ["one", "two"], "question_id": 1},  # Spec-Bench, MT-Bench
        {"prompt": "one", "entry_point": "f"},  # HumanEval
        {"question": "one", "answer": "1"},  # GSM8K
        "one",
    ],
)
def test_file_gives_the_first_turn_of_each_record(record, tmp_path):
    plain = isinstance(record, str)
    file = tmp_path / ("set.txt" if plain else "set.jsonl.gz")
    line = (record if plain else json.dumps(record)).encode()
    data = line + b"\n\n" + line + b"\n"
    file.write_bytes(data if plain else gzip.compress(data))
    found = load(str(file))
    assert [prompt.id for prompt in found] == ["set/0", "set/1"]
    assert [dict(turn) for turn in found[1].messages] == ANSWERED[:1]


def test_named_set_is_a_file_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREWORD_PROMPTS", str(tmp_path))
    turns = {"turns": ["Who?"], "category": "roleplay"}
    (tmp_path / "spec_bench.jsonl").write_text(json.dumps(turns))
    (tmp_path / "gsm8k_test.jsonl").write_text('{"question": "How many?"}')
    assert [prompt.id for prompt in load("spec-bench")] == ["roleplay/0"]
    assert [prompt.id for prompt in load("gsm8k")] == ["gsm8k_test/0"]
    assert len(load("in-domain")) == 63
    with pytest.raises(InvalidRequest, match=f"or a file of the folder {tmp_path}"):
        load("mt-bench")


@pytest.mark.parametrize("line", ['{"text": "one"}', '{"turns": [1]}', "[1]", "["])
def test_record_without_text_is_refused(line, tmp_path):
    file = tmp_path / "set.jsonl"
    file.write_text(line)
    with pytest.raises(InvalidRequest, match=r"turns or prompt or question"):
        load(str(file))
    file.write_text("")
    with pytest.raises(InvalidRequest, match="no message"):
        load(str(file))
