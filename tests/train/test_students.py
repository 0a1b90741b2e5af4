"""Every trainable method: a whole training ends in a folder that names the method that
serves it.
"""

import json
from pathlib import Path

import pytest
import torch

from foreword import LLM, SamplingParams
from foreword.draft import METHODS, default_method
from foreword.train.job import Job, run
from foreword.train.registry import TRAIN_OPTIONS, TrainOptions
from foreword.train.report.measure import Questions
from foreword.train.trainer import TrainingConfig

pytestmark = pytest.mark.filterwarnings("ignore:.* records to train on are few")

SMALL: dict[str, dict[str, int]] = {
    "lm": {"hidden": 64},
    "eagle": {"unroll": 2, "draft_vocab": 100},
    "dflash": {"layers": 1, "block": 4},
    "dspark": {"layers": 1, "block": 3, "rank": 4},
    "medusa": {"heads": 2},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    lines = [
        {"text": f"{number} and {number} make {2 * number}, as everybody knows."}
        for number in range(48)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_every_trainable_method_has_a_small_size_here():
    assert {kind.method for kind in TRAIN_OPTIONS} == set(SMALL) <= set(METHODS)


@pytest.mark.parametrize("kind", TRAIN_OPTIONS, ids=lambda kind: kind.method)
def test_from_files_to_a_folder_that_is_served(
    kind: type[TrainOptions], data, tmp_path
):
    out = tmp_path / "made"
    job = Job(
        options=kind(**SMALL[kind.method]),
        data=(data,),
        out=out,
        length=64,
        held_out=4,
        device="cpu",
        bf16=False,
        recipe=TrainingConfig(steps=2, batch=1, warmup=1, evaluate=2),
        questions=Questions(prompts=1, tokens=4, depth=2),
    )
    report = run(job)
    assert report.settings["method"] == kind.method
    assert report.held_out["acceptance_1" if kind.method != "lm" else "acceptance"] >= 0
    assert [
        figure.temperature for figure in report.metrics if figure.domain == "all"
    ] == [0.0, 1.0]
    assert default_method(out) == kind.method
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=8)
    drafted, plain = (
        LLM(draft=out, nodes=2, dtype="float32"),
        LLM(method="none", dtype="float32"),
    )
    assert drafted.method == kind.method
    assert (
        drafted.generate("3 and 3", params)[0].tokens
        == plain.generate("3 and 3", params)[0].tokens
    )
    assert drafted.engine.failed is None
    assert sum(torch.isfinite(torch.tensor(list(report.held_out.values())))) == len(
        report.held_out
    )
