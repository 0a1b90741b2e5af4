"""`foreword generate --batch`: every line is answered as it is alone, whatever becomes
of the others.
"""

import json

import pytest

from foreword import SamplingParams

PROMPTS = ("Who wrote Hamlet?", "Define the word river.", "Say hello.")
WORDS = ("generate", "--seed", "3", "--max-tokens", "10", "--no-stats")


@pytest.fixture
def file(here):
    """Lines of all kinds; the second and the last cannot be served."""
    records = (
        {"prompt": PROMPTS[0], "id": "first"},
        {"prompt": PROMPTS[1], "temprature": 0},
        {
            "messages": [{"role": "user", "content": PROMPTS[1]}],
            "temperature": 0,
            "max_tokens": 6,
            "seed": 9,
        },
        {"prompt": PROMPTS[2], "logit_bias": {"300": 3}, "stop": ["e"]},
        {"prompt": "word " * 3000},
    )
    (here.folder / "in.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records) + "\n{\n"
    )
    return "in.jsonl"


def lines(text: str) -> dict[int, dict]:
    return {said["index"]: said for said in map(json.loads, text.splitlines())}


def alone(llm, prompt: str, **params) -> list[int]:
    return llm.chat(
        [{"role": "user", "content": prompt}],
        SamplingParams(**{"seed": 3, "max_tokens": 10} | params),
    ).tokens


def test_lines_are_answered_as_they_are_alone(here, file, llm):
    found = here(*WORDS, "--batch", file, "--slots", "2", "--nodes", "4")
    said = lines(found.stdout)
    assert found.returncode == 1
    assert set(said) == set(range(6))
    assert said[0]["id"] == "first"
    assert said[0]["tokens"] == alone(llm, PROMPTS[0])
    assert said[2]["tokens"] == alone(
        llm, PROMPTS[1], temperature=0, max_tokens=6, seed=9
    )
    assert said[3]["tokens"] == alone(llm, PROMPTS[2], logit_bias={300: 3}, stop="e")
    assert sum(one.get("accepted", 0) for one in said.values()) > 0
    assert "Did you mean 'temperature'" in said[1]["error"]
    assert "3" in said[4]["error"]
    assert "not JSON" in said[5]["error"]


def test_it_goes_on_where_it_ended(here, file):
    words = (*WORDS, "--batch", file, "--out", "out.jsonl")
    assert here(*words).returncode == 1
    out = here.folder / "out.jsonl"
    whole = lines(out.read_text())
    good = [
        line
        for line in out.read_text().splitlines(keepends=True)
        if "error" not in json.loads(line)
    ]
    mark = json.loads(good[0]) | {"text": "kept as it is"}
    out.write_text(json.dumps(mark) + "\n" + good[1] + good[2][:20])
    assert here(*words).returncode == 1
    again = lines(out.read_text())
    assert again.pop(mark["index"]) == mark
    del whole[mark["index"]]
    parts = ("tokens", "text", "error", "id", "seed")
    assert {
        index: [one.get(part) for part in parts] for index, one in again.items()
    } == {index: [one.get(part) for part in parts] for index, one in whole.items()}
    refused = here(*words[:-2], "--temperature", "0.5", "--out", "out.jsonl")
    assert refused.returncode == 2
    assert "answers to other prompts" in refused.stderr


def test_lines_of_text_get_several_answers(here, llm):
    (here.folder / "in.txt").write_text(
        "".join(f"{prompt}\n" for prompt in PROMPTS[:2])
    )
    found = here(*WORDS, "--batch", "in.txt", "-n", "2")
    assert found.returncode == 0, found.stderr
    said = [json.loads(line) for line in found.stdout.splitlines()]
    assert {(one["index"], one["answer"], one["seed"]) for one in said} == {
        (0, 0, 3),
        (0, 1, 4),
        (1, 0, 3),
        (1, 1, 4),
    }
    for one in said:
        assert one["tokens"] == alone(llm, PROMPTS[one["index"]], seed=one["seed"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--batch", "nothing.jsonl"),
            "cannot read nothing.jsonl: no such file exists",
        ),
        (("x", "--batch", "in.jsonl"), "cannot read two inputs"),
        (("x", "--out", "new"), "they go with '--batch'"),
        (("--batch", "empty.txt"), "cannot answer empty.txt: it has no prompts"),
        (("--batch", "in.jsonl", "--out", "none/new"), "cannot write"),
        (("--batch", "in.jsonl", "--out", "in.jsonl"), "something else than answers"),
    ],
)
def test_what_cannot_be_answered_is_refused(here, file, words, said):
    (here.folder / "empty.txt").write_text("\n")
    before = (here.folder / file).read_text()
    found = here("generate", *words)
    assert (found.returncode, found.stdout) == (2, "")
    assert said in found.stderr
    assert (here.folder / file).read_text() == before


def test_an_empty_prompt_is_an_error_of_its_line(here):
    (here.folder / "empty.jsonl").write_text('{"prompt": " "}\n{"prompt": "One day"}\n')
    found = here(*WORDS, "--batch", "empty.jsonl")
    said = lines(found.stdout)
    assert found.returncode == 1
    assert "the prompt is empty" in said[0]["error"]
    assert said[1]["tokens"]
