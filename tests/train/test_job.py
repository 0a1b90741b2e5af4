"""A job turns files into a draft that loads beside its target, and a report."""

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

import pair
import starter
from asking import assistant, user
from foreword import LLM, SamplingParams
from foreword.errors import InvalidRequest, UnknownMethod
from foreword_train.job import Job, eos, evaluated, run
from foreword_train.registry import LmOptions
from foreword_train.report.measure import EACH, Questions
from foreword_train.trainer import TrainingConfig
from running import target, tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:.* records to train on are few")

DEFINITIONS = {
    "river": "A large natural stream of water that flows to the sea",
    "bridge": "A structure that carries a road over a river",
    "window": "An opening in a wall that lets in light and air",
    "candle": "A stick of wax with a wick that gives light when it burns",
    "garden": "A piece of ground where flowers and vegetables are grown",
    "ladder": "Two long bars joined by steps, used for climbing",
    "winter": "The coldest season of the year",
    "mirror": "A surface that throws back an image of what is before it",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    with path.open("w") as file:
        pairs = product(DEFINITIONS.items(), ("", " again", " once more"))
        for (word, meaning), again in pairs:
            chat = [user(f"Define the word {word}{again}."), assistant(meaning)]
            text = f"{word.title()}{again}: {meaning.lower()}."
            for record in (
                {"messages": chat, "source": "words"},
                {"text": text, "source": "notes"},
            ):
                file.write(json.dumps(record) + "\n")
    return path


def job(data: Path, out: Path, **changes) -> Job:
    pace = dict(warmup=2, learning_rate=0.01, evaluate=8, save=5)
    recipe = TrainingConfig(steps=16, batch=2, **pace)
    usual = dict(held_out=4, recipe=recipe)
    usual |= dict(questions=Questions(prompts=2, tokens=8, depth=2))
    small = LmOptions(hidden=64)
    return replace(pair.job(small, starter.target(), data, out, **usual), **changes)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("trained") / "draft"
    rows, notes = [], []
    with pytest.warns(UserWarning, match="44 records to train on are few"):
        report = run(job(data, out), watch=rows.append, note=notes.append)
    return out, report, rows, notes


def test_acceptance_rises(trained):
    _, _, rows, _ = trained
    first, *_, last = (row.held_out["acceptance"] for row in rows if row.held_out)
    assert last > first + 0.03


def test_the_report_lies_beside_the_draft(trained):
    out, report, rows, notes = trained
    written = json.loads((out / "report.json").read_text())
    assert written == json.loads(json.dumps(report.as_json()))
    domains = {figure["domain"] for figure in written["metrics"]}
    assert domains == {"all", "words", "notes"}
    assert {figure["temperature"] for figure in written["metrics"]} == {0.0, 1.0}
    assert written["learnt"] == sum(row.tokens for row in rows)
    assert "# A drafter" in (out / "README.md").read_text()
    assert (out / "acceptance.png").read_bytes().startswith(b"\x89PNG")
    assert notes[0] == "44 records to train on, 4 held out"


def test_measurement_announces_its_length_and_progress(trained):
    notes = trained[3]
    plan = "after the training, answers to at most 2 held-out prompts are measured"
    assert notes[1] == plan
    assert "2 held-out prompts, answers of up to 8 tokens, at temp" in notes[2]
    assert re.search(r"temperatures 0 and 1: about \d+ s at", notes[2])
    assert re.fullmatch(r"2 of 4 answers, about \d+ s left", notes[3])
    assert len(notes) == 4


def test_at_most_a_tenth_is_held_out(data, tmp_path):
    notes = []
    recipe = TrainingConfig(steps=1, batch=1)
    default = dict(target=None, held_out=256, questions=Questions(prompts=0))
    made = job(data, tmp_path / "draft", recipe=recipe, **default)
    run(made, note=notes.append)
    assert notes == ["44 records to train on, 4 held out"]


def test_folder_in_use_is_refused_before_data_are_read(trained, tmp_path):
    with pytest.raises(InvalidRequest, match="holds a training already"):
        run(job(tmp_path / "nothing.jsonl", trained[0]))


def test_evaluations_read_less_than_the_training():
    sizes = [
        evaluated(TrainingConfig(steps=steps, batch=8, evaluate=100))
        for steps in (1, 10, 30, 100, 1000)
    ]
    assert sizes == [4, 10, 30, 32, 32]


def test_measurement_is_no_longer_than_the_training():
    default = Questions()
    temperatures = len(default.temperatures)
    sizes = [default.after(trained) for trained in (0, 4_000, 40_000, 131_072, 10**9)]
    found = [(one.prompts, one.tokens) for one in sizes]
    assert found == [(4, 16), (4, 31), (19, 64), (64, 64), (64, 64)]
    for prompts, tokens in found[1:3]:
        assert prompts * tokens * temperatures * EACH <= 40_000
    chosen = Questions(prompts=30)
    assert chosen.after(0) is chosen


def test_trained_draft_changes_no_token(trained):
    out = trained[0]
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=24)
    prompt = "Define the word river."
    with LLM(starter.target(), draft=out, nodes=3) as llm:
        drafted = llm.generate(prompt, params)[0]
        plain = llm.generate(prompt, replace(params, method="none"))[0]
    assert drafted.tokens == plain.tokens
    assert drafted.stats.drafted > 0


def test_finished_job_returns_its_report_again(trained, data):
    out, report, _, _ = trained
    again = run(job(data, out), resume=True)
    assert again == report
    with pytest.raises(InvalidRequest, match="holds a training already"):
        run(job(data, out))
    with pytest.raises(InvalidRequest, match="loss: 'hybrid', now 'tv'"):
        run(job(data, out, loss="tv"), resume=True)


def test_training_starts_from_a_given_draft(trained, data, tmp_path):
    rows = []
    recipe = TrainingConfig(steps=1, batch=1)
    more = dict(options=LmOptions(draft=str(trained[0])), recipe=recipe)
    made = job(data, tmp_path, questions=Questions(prompts=0), **more)
    run(made, watch=rows.append)
    learnt = [row.held_out["acceptance"] for row in trained[2] if row.held_out]
    # it was stored in fewer bits
    assert rows[0].held_out["acceptance"] == pytest.approx(learnt[-1], abs=0.01)


def test_bad_settings_are_refused_before_any_work(data, tmp_path):
    with pytest.raises(InvalidRequest, match="exceed the target's context of 1024"):
        run(job(data, tmp_path, length=2000))
    with pytest.raises(UnknownMethod, match="cannot use loss"):
        run(job(data, tmp_path, loss="best"))
    with pytest.raises(InvalidRequest, match="cannot create"):
        run(job(data, data / "below a file"))
    assert list(tmp_path.iterdir()) == []


def test_end_of_text_is_that_of_the_checkpoint():
    assert eos(target("bfloat16").hf, tokenizer()) == frozenset([0])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.gpu
def test_it_learns_on_a_gpu(data, tmp_path):
    rows = []
    run(job(data, tmp_path, device="cuda", bf16=True), watch=rows.append)
    first, *_, last = (row.held_out["acceptance"] for row in rows if row.held_out)
    assert last > first + 0.03
