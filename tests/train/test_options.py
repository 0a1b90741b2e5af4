"""Every trainable method: a training ends in a folder that is served."""

import json
import math
from pathlib import Path

import pytest

import starter
from foreword import LLM, SamplingParams
from foreword.draft import METHODS, default_method
from foreword_train.job import run
from foreword_train.registry import TRAIN_OPTIONS, TrainOptions
from foreword_train.report.measure import Questions
from foreword_train.trainer import TrainingConfig
from pair import job

pytestmark = pytest.mark.filterwarnings("ignore:.* records to train on are few")

PROMPT = "3 and 3"
PARAMS = SamplingParams(temperature=1.0, seed=5, max_tokens=8)
SMALL: dict[str, dict[str, int | str]] = {
    "lm": {"hidden": 64},
    "pard": {"draft": str(starter.draft()), "depth": 2},
    "eagle": {"unroll": 2, "draft_vocab": 100},
    "mtp": {"unroll": 2},
    "dflash": {"layers": 1, "block": 4},
    "dspark": {"layers": 1, "block": 3, "rank": 4},
    "medusa": {"heads": 2},
    "layers": {"ramp": 1},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    lines = [
        {"text": f"{number} and {number} make {2 * number}, as is well known."}
        for number in range(48)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def plain() -> list[int]:
    """The tokens of plain decoding."""
    with LLM(starter.target(), method="none") as llm:
        return llm.generate(PROMPT, PARAMS)[0].tokens


def test_every_trainable_method_has_a_small_size_here():
    assert {kind.method for kind in TRAIN_OPTIONS} == set(SMALL) <= set(METHODS)


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", TRAIN_OPTIONS, ids=lambda kind: kind.method)
def test_trained_folder_is_served(kind: type[TrainOptions], data, plain, tmp_path):
    out = tmp_path / "made"
    recipe = TrainingConfig(steps=2, batch=1, warmup=1, evaluate=2)
    more = dict(held_out=4, recipe=recipe, questions=Questions(prompts=0))
    report = run(job(kind(**SMALL[kind.method]), starter.target(), data, out, **more))
    assert report.settings["method"] == kind.method
    assert all(map(math.isfinite, report.held_out.values()))
    if kind.is_target:
        assert report.target == str(out)
        assert report.held_out["agreement_7"] > 0
        with LLM(out, method=kind.method, nodes=2) as llm:
            skip = llm.engine.default.drafter.skip
            assert skip.attention == skip.mlp != frozenset()  # it leaves at an exit
        return
    assert report.held_out["acceptance_1" if kind.method != "lm" else "acceptance"] >= 0
    assert default_method(out) == kind.method
    with LLM(starter.target(), draft=out, nodes=2) as llm:
        assert llm.method == kind.method
        assert llm.generate(PROMPT, PARAMS)[0].tokens == plain
        assert llm.engine.failed is None
