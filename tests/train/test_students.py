"""Every student: what it is taught comes out of a whole training as a folder that says which method it serves."""

import json
from pathlib import Path

import pytest
import torch

from foreword import LLM, SamplingParams
from foreword.draft import METHODS, usual
from foreword.train.job import Job, run
from foreword.train.report import Questions
from foreword.train.students import STUDENTS, Student
from foreword.train.trainer import Recipe

SMALL: dict[str, dict[str, int]] = {
    "lm": {"hidden": 64}, "eagle": {"unroll": 2, "draft_vocab": 100}, "dflash": {"layers": 1, "block": 4},
    "dspark": {"layers": 1, "block": 3, "rank": 4}, "medusa": {"heads": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    lines = [{"text": f"{number} and {number} make {2 * number}, as everybody knows."} for number in range(16)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_every_student_has_a_method_and_a_small_size_here():
    assert {kind.method for kind in STUDENTS} == set(SMALL) <= set(METHODS)


@pytest.mark.parametrize("kind", STUDENTS, ids=lambda kind: kind.method)
def test_from_files_to_a_folder_that_is_served(kind: type[Student], data, tmp_path):
    out = tmp_path / "made"
    job = Job(
        student=kind(**SMALL[kind.method]), data=(data,), out=out, length=64, held_out=4, device="cpu", bf16=False,
        recipe=Recipe(steps=2, batch=1, warmup=1, evaluate=2), questions=Questions(prompts=1, tokens=4, depth=2),
    )  # fmt: skip
    report = run(job)
    assert report.settings["method"] == kind.method
    assert report.held_out["acceptance_1" if kind.method != "lm" else "acceptance"] >= 0
    assert [figure.temperature for figure in report.figures if figure.domain == "all"] == [0.0, 1.0]
    assert usual(out) == kind.method
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=8)
    guessed, plain = LLM(draft=out, nodes=2, dtype="float32"), LLM(method="none", dtype="float32")
    assert guessed.method == kind.method
    assert guessed.generate("3 and 3", params)[0].tokens == plain.generate("3 and 3", params)[0].tokens
    assert guessed.engine.failed is None
    assert sum(torch.isfinite(torch.tensor(list(report.held_out.values())))) == len(report.held_out)
