"""The acceptance model: fitted, calibrated on held-out text, used by a budget."""

import json

import pytest
import torch

import starter
from foreword import LLM, SamplingParams
from foreword.errors import InvalidRequest
from foreword_train.data.packing import Encoder, Packer
from foreword_train.data.records import read
from foreword_train.job import eos
from foreword_train.learned import FILE, AcceptanceModel, features
from foreword_train.methods.acceptance import HEATS, Asked, Samples, collect, run
from foreword_train.methods.lm import load
from running import prompts, tokenizer

GOOD = 0.15
"""Calibration error on the few tokens that a test reads; with an hour's data, 0.01."""
PAIR = {"target": str(starter.target()), "draft": str(starter.draft())}
PROMPTS = [list(prompt) for prompt in prompts()]


@pytest.fixture(scope="module")
def llm():
    with LLM(starter.target(), method="none") as llm:
        yield llm


@pytest.fixture(scope="module")
def records(llm, tmp_path_factory):
    """The target's answers to the tests' prompts, with eight seeds each."""
    params = [
        SamplingParams(temperature=0.9, seed=seed, max_tokens=48)
        for seed in range(8)
        for _ in PROMPTS
    ]
    answers = llm.generate(PROMPTS * 8, params)
    path = tmp_path_factory.mktemp("data") / "answers.jsonl"
    texts = [tokenizer().decode(one.prompt_tokens + one.tokens) for one in answers]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_fit_finds_the_true_probabilities():
    torch.manual_seed(0)
    seen = features(3 * torch.randn(4000, 30), 1.0)
    truth = (0.7 * seen[:, 0] - 0.2 * seen[:, 2]).sigmoid()
    model = Samples(seen[:3000], truth[:3000]).fit()
    assert (model.probability(seen[3000:]) - truth[3000:]).abs().max() < 0.02
    flipped = Samples(seen[3000:], (torch.rand(1000) < truth[3000:]).float()).evaluate(
        model
    )
    assert flipped["calibration_error"] < 0.06
    assert flipped["brier"] < 0.9 * flipped["brier_of_a_constant"]


def test_overconfidence_is_a_calibration_error():
    seen = features(3 * torch.randn(2000, 30), 1.0)
    model = Samples(seen, torch.full((2000,), 0.9)).fit()
    assert Samples(seen, torch.full((2000,), 0.5)).evaluate(model)[
        "calibration_error"
    ] == pytest.approx(0.4, abs=0.02)


@pytest.mark.slow
def test_only_sampled_draft_tokens_have_probabilities(records):
    pair = tuple(load(source, torch.bfloat16).eval() for source in PAIR.values())
    packer = Packer(
        Encoder(tokenizer(), eos(pair[0], tokenizer())), read([records]), 128, 0
    )
    seen = collect(pair, packer, 200, lambda _: None)
    assert set(seen[0.0].kept.tolist()) == {0.0, 1.0}
    assert all(len(set(seen[heat].kept.tolist())) > 50 for heat in HEATS)
    assert len({len(found.kept) for found in seen.values()}) == 1


def test_trained_model_is_written_and_serves(llm, records, tmp_path):
    out = tmp_path / "model"
    made = run(Asked(data=(records,), out=out, tokens=1000, length=128, **PAIR))
    assert AcceptanceModel.read(out) == made
    for heat, found in made.about["held_out"].items():
        assert found["calibration_error"] < GOOD, heat
        assert found["brier"] < found["brier_of_a_constant"], heat
    with LLM(
        PAIR["target"], draft=PAIR["draft"], method="lm", budget=f"acceptance:{out}"
    ) as drafting:
        for temperature in (0.0, 1.0):
            params = SamplingParams(temperature=temperature, seed=3, max_tokens=16)
            answers = drafting.generate(PROMPTS, params)
            plain = llm.generate(PROMPTS, params)
            assert [one.tokens for one in answers] == [one.tokens for one in plain]
            assert (
                sum(one.stats.accepted for one in answers)
                > 0.3 * sum(one.stats.drafted for one in answers)
                > 0
            )
        assert drafting.engine.failed is None
    with pytest.raises(InvalidRequest, match="exists already"):
        run(Asked(data=(records,), out=out))


def test_bad_options_are_refused_before_reading(records, tmp_path):
    out = tmp_path / "model"
    with pytest.raises(InvalidRequest, match="tokens must be"):
        run(Asked(data=(records,), out=out, tokens=5))
    with pytest.raises(InvalidRequest, match="give draft="):
        run(Asked(data=(records,), out=out, target=PAIR["target"]))
    with pytest.raises(InvalidRequest, match="cannot create"):
        run(Asked(data=(records,), out=records / "below a file"))
    assert not (out / FILE).exists()
