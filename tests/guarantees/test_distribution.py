"""The loop on real models, by rule: each token has the target's distribution."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import kstest

from foreword.budget import DraftBudget, FixedBudget
from foreword.budget.stopping import ConfidenceBudget
from foreword.native.cpu import fast_bfloat16
from foreword.types import Draft, DraftTree, SamplingParams
from foreword.verify import RULES
from grids import slow_case
from running import Case, distribution, draft, drafter, engine, finish, prompts, target

DTYPE = "bfloat16" if fast_bfloat16() else "float32"
LEVEL = 1e-3
"""Probability that a test of these fixed seeds fails for bad luck."""
TEXTS, TOKENS = 24, 32
"""768 tokens: halving the noise of `rejection` is seen in them far below LEVEL."""
QUICK = ("traversal",)
"""Drawn trees; `block` gets a budget of chains. All rules are exact in tests/verify."""


def ranks(rule: str, budget: DraftBudget | int = 6) -> tuple[list[float], float]:
    """Where each token lies in the target's distribution, in the order of how much the
    draft model overrates it: uniform on [0, 1] if and only if the tokens have it, as
    favours move all numbers one way. Also the tokens per pass.
    """
    params = [
        SamplingParams(temperature=1.0, seed=seed, max_tokens=TOKENS, ignore_eos=True)
        for seed in range(TEXTS)
    ]
    asked = [Case(prompts()[seed % 5], one) for seed, one in enumerate(params)]
    answers = finish(
        engine(target(DTYPE), drafter("lm", DTYPE), budget, rule=rule, slots=4), asked
    )
    places, spare = [], torch.Generator().manual_seed(1)
    for answer in answers:
        request = answer.request
        p, q = (
            distribution(model, request.tokens).double().softmax(-1)
            for model in (target(DTYPE), draft(DTYPE))
        )
        for place in range(request.prompt, len(request.tokens)):
            ours, theirs, token = p[place - 1], q[place - 1], request.tokens[place]
            before = (theirs / ours > theirs[token] / ours[token]).double() @ ours
            places.append(float(before + ours[token] * torch.rand((), generator=spare)))
    stats = [answer.request.stats for answer in answers]
    return places, sum(one.tokens for one in stats) / sum(one.rounds for one in stats)


@pytest.mark.parametrize(
    "rule",
    [pytest.param(r, marks=() if r in QUICK else pytest.mark.slow) for r in RULES],
)
def test_tokens_have_the_targets_distribution(rule):
    places, per_pass = ranks(rule)
    assert per_pass > 1.5, "too few draft tokens were accepted to show anything"
    assert kstest(places, "uniform").pvalue > LEVEL


@pytest.mark.parametrize("rule", ["block", *map(slow_case, ("rejection", "traversal"))])
def test_tokens_have_it_where_a_budget_ends_chains(rule):
    places, per_pass = ranks(rule, ConfidenceBudget())
    assert per_pass > 1.3, "too few draft tokens were accepted to show anything"
    assert kstest(places, "uniform").pvalue > LEVEL


class Peeking(FixedBudget):
    """Would leave out draft tokens for their own probabilities, which is biased."""

    shown = 0

    def trim(self, draft):
        self.shown += draft.nodes
        return Draft([DraftTree()] * len(draft.trees))


@pytest.mark.parametrize("rule", ["rejection", "traversal"])
def test_budget_does_not_see_sampled_draft_tokens(rule):
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=24, ignore_eos=True)
    texts = []
    for budget in (Peeking(6), FixedBudget(6)):
        (answer,) = finish(
            engine(target(DTYPE), drafter("lm", DTYPE), budget, rule=rule),
            [Case(prompts()[1], params)],
        )
        assert answer.request.stats.accepted > 0
        texts.append((answer.tokens, [delta.drafted for delta in answer.deltas]))
        assert not getattr(budget, "shown", 0)
    assert texts[0] == texts[1]
    seen = Peeking(6)
    finish(
        engine(target(DTYPE), drafter("ngram", DTYPE), seen, rule=rule),
        [Case(prompts()[2], params)],
    )
    assert seen.shown, "it may drop chosen ones"


def test_favour_to_draft_tokens_would_be_seen(monkeypatch):
    """A draft token that is refused by a little is let through."""
    honest = RULES["rejection"]

    def eager(distributions, draft_tokens, noise):
        return honest.verify(
            distributions, draft_tokens, replace(noise, accept=noise.accept * 0.5)
        )

    monkeypatch.setitem(RULES, "rejection", replace(honest, verify=eager))
    places, _ = ranks("rejection")
    assert kstest(places, "uniform").pvalue < LEVEL
