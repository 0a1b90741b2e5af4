"""The whole loop on real models, under every rule: each token is drawn from the law of the target after its text."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import kstest

from foreword.model.linear import fast_bfloat16
from foreword.types import SamplingParams
from foreword.verify import RULES
from running import Request, draft, drafter, engine, finish, law, prompts, target

DTYPE = "bfloat16" if fast_bfloat16() else "float32"
LEVEL = 1e-3
"""Seeds are fixed, so a test either always passes or always fails; this is its chance of being unlucky."""
QUICK = ("traversal", "kseq")


def ranks(rule: str, texts: int, tokens: int, temperature: float) -> tuple[list[float], float]:
    """Where each token lies in the target's law, in the order of how much the draft model overrates it.

    Uniform on [0, 1] if and only if the tokens are drawn from that law. In this order any favour that a rule does the
    draft model's guesses moves all numbers one way. Also the tokens per pass.
    """
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=tokens, ignore_eos=True) for seed in range(texts)
    ]
    asked = [Request(prompts()[seed % 5], one) for seed, one in enumerate(params)]
    answers = finish(engine(target(DTYPE), drafter("lm", DTYPE), 6, rule=rule, slots=4), asked)
    places, spare = [], torch.Generator().manual_seed(1)
    for answer in answers:
        sequence = answer.sequence
        p, q = (
            (law(model, sequence.tokens) / temperature).double().softmax(-1) for model in (target(DTYPE), draft(DTYPE))
        )
        for place in range(sequence.prompt, len(sequence.tokens)):
            ours, theirs, token = p[place - 1], q[place - 1], sequence.tokens[place]
            before = (theirs / ours > theirs[token] / ours[token]).double() @ ours
            places.append(float(before + ours[token] * torch.rand((), generator=spare)))
    stats = [answer.sequence.stats for answer in answers]
    return places, sum(one.tokens for one in stats) / sum(one.rounds for one in stats)


@pytest.mark.parametrize("rule", [pytest.param(r, marks=() if r in QUICK else pytest.mark.slow) for r in RULES])
def test_tokens_are_drawn_from_the_targets_law(rule):
    places, per_pass = ranks(rule, texts=24, tokens=32, temperature=1.0)
    assert per_pass > 1.5, "too few guesses stay to say anything"
    assert kstest(places, "uniform").pvalue > LEVEL


def test_a_favour_to_the_draft_models_guesses_would_be_seen(monkeypatch):
    """A guess that is refused by a little is let through."""
    honest = RULES["rejection"]

    def eager(laws, guesses, noise):
        return honest.verify(laws, guesses, replace(noise, accept=noise.accept * 0.5))

    monkeypatch.setitem(RULES, "rejection", replace(honest, verify=eager))
    places, _ = ranks("rejection", texts=24, tokens=32, temperature=1.0)
    assert kstest(places, "uniform").pvalue < LEVEL
