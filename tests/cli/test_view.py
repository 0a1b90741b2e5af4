"""`foreword generate --record` records, and `foreword view` shows it, modelless."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import starter
from foreword import SamplingParams
from foreword.hindsight.playback import emitted
from foreword.recording import Recording
from foreword.types.round import REASONS

QUESTION = 'Define the word "gasolene".'
WORDS = ("generate", QUESTION, "--seed", "7", "--max-tokens", "24", "--nodes", "4")


@pytest.fixture
def file(here) -> Path:
    found = here(*WORDS, "--record", "answer.json")
    assert found.returncode == 0, found.stderr
    assert found.stderr.endswith(
        "saved the recording; see it with: foreword view answer.json\n"
    )
    return here.folder / "answer.json"


def test_a_recording_is_that_of_the_library(here, llm, file):
    params = SamplingParams(seed=7, max_tokens=24, method="lm", nodes=4, trace=True)
    completion = llm.chat([{"role": "user", "content": QUESTION}], params)
    recording, expected = Recording.read(file), Recording.of(llm, params, completion)
    for name in (
        "model method rule budget params seed prompt_tokens answer finish_reason"
    ).split():
        assert getattr(recording, name) == getattr(expected, name)
    # which tokens are drafted depends on measured times
    assert emitted(recording.rounds) == emitted(expected.rounds)
    assert min(recording.totals.accepted, expected.totals.accepted) > 0


def test_json_and_a_recording_go_together(here, unbarred):
    found = here(*WORDS, "--record", "answer.json", "--json", "--quiet")
    recording = Recording.read(here.folder / "answer.json")
    assert json.loads(found.stdout)["text"] == recording.answer
    assert found.stderr == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--record", "a.json", "-n", "2"), "answers: '--record' writes one"),
        (("--record", "nowhere/a.json"), "cannot write nowhere/a.json"),
    ],
)
def test_what_cannot_be_recorded_is_refused_at_once(here, words, said):
    found = here("generate", QUESTION, *words)
    assert (found.returncode, found.stdout) == (2, "")
    assert said in found.stderr


def test_view_shows_the_answer_and_the_totals(here, file):
    recording, found = Recording.read(file), here("view", "answer.json")
    assert (found.returncode, found.stderr) == (0, "")
    shown = " ".join(found.stdout.split())
    assert " ".join(recording.answer.split())[:30] in shown
    assert f"{recording.totals.rounds} passes" in shown
    assert re.search(rf"accepted +{recording.totals.accepted} ", found.stdout)
    assert "seed 7" in re.sub(" +", " ", shown)
    assert "round drafted" not in shown


def test_view_shows_every_round_with_the_reason_for_no_draft(here, file):
    here(*WORDS[:-2], "--method", "none", "--record", "answer.json")
    recording = Recording.read(file)
    found = here("view", "answer.json", "--rounds", COLUMNS="200")
    rows = re.findall(r"^ +\d+ +(\d+) +(\d+) +\d+\.\d  ", found.stdout, re.MULTILINE)
    assert rows == [("0", "0")] * len(recording.rounds)
    assert found.stdout.count(REASONS["method"]) == len(recording.rounds)


ATTACK = "\x1b]0;title\x07\x9b31m\x7f[bold]x[/bold]"
"""Sets the title of a terminal, turns its text red, and is markup of rich."""


def test_no_text_of_a_recording_drives_the_terminal(here, file):
    here(*WORDS[:-2], "--method", "none", "--record", "answer.json")
    values = json.loads(file.read_text(encoding="utf-8"))
    for name in ("library", "model", "method", "rule", "budget", "prompt", "answer"):
        values[name] = ATTACK
    values["machine"]["cpu"] = ATTACK
    values["totals"]["undrafted"] = {ATTACK: 1}
    for one in values["rounds"]:
        one["pieces"] = [ATTACK for _ in one["pieces"]]
        one["added"]["text"] = ATTACK
    file.write_text(json.dumps(values), encoding="utf-8")
    found = here("view", "answer.json", "--rounds", COLUMNS="400")
    assert (found.returncode, found.stderr) == (0, "")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", found.stdout)
    assert found.stdout.count("[bold]x[/bold]") >= 7
    assert "␛]0;title␇�31m␡" in found.stdout


def test_no_error_about_a_file_drives_the_terminal(here):
    folder = shutil.copytree(starter.draft(), here.folder / "model")
    weights = folder / "model.safetensors"
    tensors = {**load_file(weights), ATTACK: torch.ones(1)}
    save_file(tensors, weights, metadata={"format": "pt"})
    found = here("inspect", "./model")
    assert found.returncode == 1
    assert "[bold]x[/bold], which its config has no place for" in " ".join(
        found.stderr.split()
    )
    # before it: the progress bar of transformers
    last = found.stderr.rpartition("\r")[2]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", last)


def test_view_refuses_what_is_no_recording(here):
    (here.folder / "other.json").write_text("{}", encoding="utf-8")
    for name, said in (
        ("other.json", "cannot open other.json: the recording lacks"),
        ("none.json", "cannot read"),
    ):
        found = here("view", name)
        assert (found.returncode, found.stdout) == (2, "")
        assert said in found.stderr


def test_whatif_compares_methods_on_a_recording(here):
    asked = ("generate", "List the rivers.", "-t", "0", "--max-tokens", "24")
    assert here(*asked, "--nodes", "4", "--record", "answer.json").returncode == 0
    found = here("whatif", "answer.json", "--method", "lm", "--nodes", "4", "--json")
    values = json.loads(found.stdout)
    lm = next(one for one in values["outcomes"] if one["method"] == "lm")
    recorded = json.loads((here.folder / "answer.json").read_text())
    assert lm["passes"] == recorded["totals"]["rounds"] < lm["tokens"] == 24
    shown = here(
        "whatif", "answer.json", "--method", "ngram", "--trees", "--nodes", "2"
    )
    assert "ngram, 2 draft tokens" in shown.stdout
    assert "rule" not in shown.stdout
    by_rule = ("--rule", "match", "--rule", "block")
    both = here(
        "whatif", "answer.json", "--method", "ngram", *by_rule, "--nodes", "2"
    ).stdout.splitlines()
    rows = [line.split()[:3] for line in both]
    assert ["method", "rule", "draft"] in rows
    assert ["ngram", "block", "2"] in rows
    assert ["none", "–", "–"] in rows
    assert "as recorded: lm, budget nodes=4" in " ".join(shown.stdout.split())
    for words, said in (
        (("--nodes", "0"), "a round drafts 1 to 64 tokens"),
        (("--method", "eagl"), "Did you mean 'eagle'?"),
        (("--rule", "blok"), "Did you mean 'block'?"),
    ):
        refused = here("whatif", "answer.json", *words)
        assert refused.returncode == 2
        assert said in " ".join(refused.stderr.split())
