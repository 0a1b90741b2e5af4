"""Odds of acceptance: fitted to what was seen, honest on held-out text, and of use to a
chain.
"""

import json

import pytest
import torch

from foreword import LLM, SamplingParams, bundled
from foreword.budget.learned import FILE, AcceptanceModel, features
from foreword.errors import InvalidRequest
from foreword.train.data.packing import Encoder, Packer
from foreword.train.data.records import read
from foreword.train.job import eos
from foreword.train.methods.acceptance import HEATS, Asked, Samples, collect, run
from foreword.train.methods.lm import load
from running import prompts, tokenizer

GOOD = 0.15
"""Calibration error on the few tokens that a test reads; an hour's data have 0.01."""


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """What the target says to the prompts of the tests, many times over in other words:
    enough to hold some out.
    """
    llm = LLM(method="none", dtype="float32")
    asked = [
        SamplingParams(temperature=0.9, seed=seed, max_tokens=48)
        for seed in range(8)
        for _ in prompts()
    ]
    said = llm.generate([list(prompt) for prompt in prompts()] * 8, asked)
    path = tmp_path_factory.mktemp("data") / "answers.jsonl"
    texts = [tokenizer().decode(one.prompt_tokens + one.tokens) for one in said]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_odds_find_the_chances_they_were_made_from():
    torch.manual_seed(0)
    seen = features(3 * torch.randn(4000, 30), 1.0)
    truth = (0.7 * seen[:, 0] - 0.2 * seen[:, 2]).sigmoid()
    odds = Samples(seen[:3000], truth[:3000]).fit()
    assert (odds.probability(seen[3000:]) - truth[3000:]).abs().max() < 0.02
    flipped = Samples(seen[3000:], (torch.rand(1000) < truth[3000:]).float()).evaluate(
        odds
    )
    assert flipped["calibration_error"] < 0.06
    assert flipped["brier"] < 0.9 * flipped["brier_of_a_constant"]


def test_odds_that_promise_too_much_are_seen_to():
    seen = features(3 * torch.randn(2000, 30), 1.0)
    odds = Samples(seen, torch.full((2000,), 0.9)).fit()
    assert Samples(seen, torch.full((2000,), 0.5)).evaluate(odds)[
        "calibration_error"
    ] == pytest.approx(0.4, abs=0.02)


def test_at_temperature_0_a_guess_is_kept_or_not_and_above_it_by_chance(records):
    pair = tuple(
        load(source, torch.float32).eval()
        for source in (bundled.target(), bundled.draft())
    )
    packer = Packer(
        Encoder(tokenizer(), eos(pair[0], tokenizer())), read([records]), 128, 0
    )
    seen = collect(pair, packer, 200, lambda _: None)
    assert set(seen[0.0].kept.tolist()) == {0.0, 1.0}
    assert all(len(set(seen[heat].kept.tolist())) > 50 for heat in HEATS)
    assert len({len(found.kept) for found in seen.values()}) == 1


def test_a_forecast_is_learnt_written_and_serves(records, tmp_path):
    made = run(Asked(data=(records,), out=tmp_path / "odds", tokens=1500, length=128))
    assert AcceptanceModel.read(tmp_path / "odds") == made
    for heat, found in made.about["held_out"].items():
        assert found["calibration_error"] < GOOD, heat
        assert found["brier"] < found["brier_of_a_constant"], heat
    plain = LLM(method="none", dtype="float32")
    chains = LLM(method="lm", dtype="float32", budget=f"acceptance:{tmp_path / 'odds'}")
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, seed=3, max_tokens=24)
        ours = chains.generate([list(prompt) for prompt in prompts()], params)
        assert [one.tokens for one in ours] == [
            one.tokens
            for one in plain.generate([list(prompt) for prompt in prompts()], params)
        ]
        assert (
            sum(one.stats.accepted for one in ours)
            > 0.3 * sum(one.stats.drafted for one in ours)
            > 0
        )
    assert chains.engine.failed is None
    with pytest.raises(InvalidRequest, match="exists already"):
        run(Asked(data=(records,), out=tmp_path / "odds"))


def test_what_cannot_be_learnt_is_refused_before_any_reading(records, tmp_path):
    with pytest.raises(InvalidRequest, match="tokens must be"):
        run(Asked(data=(records,), out=tmp_path / "odds", tokens=5))
    with pytest.raises(InvalidRequest, match="give draft="):
        run(Asked(data=(records,), out=tmp_path / "odds", target=str(bundled.target())))
    with pytest.raises(InvalidRequest, match="cannot create"):
        run(Asked(data=(records,), out=records / "below a file"))
    assert not (tmp_path / "odds" / FILE).exists()
