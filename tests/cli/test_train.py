"""`foreword train | data`: what they write, also when stopped or misled."""

import json
import signal
from pathlib import Path

import pytest

import starter
from asking import assistant, user
from foreword_train.registry import EagleOptions
from running import shelf
from waiting import line_with

SMALL = "--hidden 64 --length 32 --batch 1 --held-out 3 --evaluate 5 --save 2 --prompts 2 --device cpu --no-bf16".split()


@pytest.fixture
def data(shell) -> Path:
    path = shell.folder / "data.jsonl"
    lines = []
    for number in range(12):
        chat = [user(f"Say {number} twice."), assistant(f"{number} {number}")]
        lines.append(json.dumps({"messages": chat, "source": "sums"}) + "\n")
    path.write_text("".join(lines))
    return path


@pytest.mark.slow
def test_a_draft_is_trained_interrupted_and_finished(shell, data):
    words = "train lm --data data.jsonl --out draft --steps 60 --json".split() + SMALL
    process = shell.start(*words)
    line_with("step 5:", process)
    process.send_signal(signal.SIGINT)
    out, err = shell.rest(process)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert out == ""
    assert shell(*words).returncode == 2
    found = shell(*words, "--resume")
    assert found.returncode == 0, found.stderr
    assert "step 0:" not in found.stderr
    report = json.loads(found.stdout)
    assert report["settings"]["steps"] == 60
    assert {figure["domain"] for figure in report["metrics"]} == {"all", "sums"}
    log = (shell.folder / "draft" / "log.jsonl").read_text()
    rows = [json.loads(line) for line in log.splitlines()]
    assert [row["step"] for row in rows] == list(range(61))
    assert "held out: loss" in found.stderr
    assert "the others take about" in found.stderr


@pytest.mark.slow
def test_answers_are_regenerated_and_kept(shell, data):
    words = "data regenerate --data data.jsonl --out out.jsonl --max-tokens 4 --json"
    words = words.split()
    found = shell(*words, "--limit", "5", "--batch", "2")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["records"] == 5
    first = (shell.folder / "out.jsonl").read_text()
    found = shell(*words)
    tally = json.loads(found.stdout)
    assert (tally["records"], tally["kept"]) == (12, 5)
    assert (shell.folder / "out.jsonl").read_text().startswith(first)
    assert "12 of 12 records" in found.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("train lm --data nothing.jsonl --out x", "no such file exists"),
        ("train lm --data data.jsonl --out x --loss tvv", "mean 'tv'"),
        ("train lm --data data.jsonl --out x --lr 0", "above 0"),
        ("data regenerate --data bad.jsonl --out x", ":2: not JSON"),
    ],
)
def test_what_cannot_be_done_is_2_and_says_why(here, data, words, says):
    (here.folder / "bad.jsonl").write_text(data.read_text().splitlines()[0] + "\n{\n")
    found = here(*words.split())
    assert found.returncode == 2
    assert says in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr
    assert not (here.folder / "x").exists()


HEAD = EagleOptions(unroll=2, draft_vocab=400)


def exported(here, engine: str, out: Path, *options: str):
    command = ["export", str(shelf(HEAD)), "--model", str(starter.target())]
    return here(*command, "--for", engine, "--out", str(out), *options)


def test_the_command_says_how_to_start_the_engine(here, tmp_path):
    out = tmp_path / "out"
    ran = exported(here, "vllm", out)
    assert ran.returncode == 0, ran.stderr
    assert "all that vllm needs" in ran.stderr
    config = ran.stdout.partition("--speculative-config ")[2].strip().strip("'")
    wanted = dict(method="eagle3", model=str(out), num_speculative_tokens=5)
    assert json.loads(config) == wanted
    again = exported(here, "vllm", out)
    assert again.returncode == 2
    assert "exists already" in again.stderr


def test_json_has_the_same_facts(here, tmp_path):
    facts = json.loads(exported(here, "sglang", tmp_path / "x", "--json").stdout)
    assert (facts["method"], facts["tensors"]) == ("eagle", 15)
    assert "--speculative-algorithm EAGLE3" in facts["command"]
