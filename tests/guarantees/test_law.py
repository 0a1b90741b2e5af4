"""The whole loop on real models, under every rule: each token is drawn from the law of
the target after its text.
"""

from dataclasses import replace

import pytest
import torch
from scipy.stats import kstest

from foreword.budget import (
    AdaEdlBudget,
    ConfidenceBudget,
    DraftBudget,
    FixedBudget,
    SvipBudget,
)
from foreword.native.cpu import fast_bfloat16
from foreword.types import Draft, DraftTree, SamplingParams
from foreword.verify import RULES
from running import (
    Request,
    distribution,
    draft,
    drafter,
    engine,
    finish,
    prompts,
    target,
)

DTYPE = "bfloat16" if fast_bfloat16() else "float32"
LEVEL = 1e-3
"""Seeds are fixed, so a test either always passes or always fails; this is its chance
of being unlucky.
"""
QUICK = ("traversal", "kseq")


def ranks(
    rule: str,
    texts: int,
    tokens: int,
    temperature: float,
    budget: DraftBudget | int = 6,
) -> tuple[list[float], float]:
    """Where each token lies in the target's law, in the order of how much the draft
    model overrates it.

    Uniform on [0, 1] if and only if the tokens are drawn from that law. In this order
    any favour that a rule does the draft model's guesses moves all numbers one way.
    Also the tokens per pass.
    """
    params = [
        SamplingParams(
            temperature=temperature, seed=seed, max_tokens=tokens, ignore_eos=True
        )
        for seed in range(texts)
    ]
    asked = [Request(prompts()[seed % 5], one) for seed, one in enumerate(params)]
    answers = finish(
        engine(target(DTYPE), drafter("lm", DTYPE), budget, rule=rule, slots=4), asked
    )
    places, spare = [], torch.Generator().manual_seed(1)
    for answer in answers:
        sequence = answer.sequence
        p, q = (
            (distribution(model, sequence.tokens) / temperature).double().softmax(-1)
            for model in (target(DTYPE), draft(DTYPE))
        )
        for place in range(sequence.prompt, len(sequence.tokens)):
            ours, theirs, token = p[place - 1], q[place - 1], sequence.tokens[place]
            before = (theirs / ours > theirs[token] / ours[token]).double() @ ours
            places.append(float(before + ours[token] * torch.rand((), generator=spare)))
    stats = [answer.sequence.stats for answer in answers]
    return places, sum(one.tokens for one in stats) / sum(one.rounds for one in stats)


@pytest.mark.parametrize(
    "rule",
    [pytest.param(r, marks=() if r in QUICK else pytest.mark.slow) for r in RULES],
)
def test_tokens_are_drawn_from_the_targets_law(rule):
    places, per_pass = ranks(rule, texts=24, tokens=32, temperature=1.0)
    assert per_pass > 1.5, "too few guesses stay to say anything"
    assert kstest(places, "uniform").pvalue > LEVEL


@pytest.mark.parametrize(
    "rule",
    [
        "block",
        *(pytest.param(r, marks=pytest.mark.slow) for r in ("rejection", "traversal")),
    ],
)
@pytest.mark.parametrize(
    "budget",
    [
        SvipBudget,
        *(
            pytest.param(w, marks=pytest.mark.slow)
            for w in (AdaEdlBudget, ConfidenceBudget)
        ),
    ],
)
def test_tokens_are_drawn_from_the_targets_law_whatever_ends_a_chain(rule, budget):
    places, per_pass = ranks(
        rule, texts=24, tokens=32, temperature=1.0, budget=budget()
    )
    assert per_pass > 1.3, "too few guesses stay to say anything"
    assert kstest(places, "uniform").pvalue > LEVEL


class Peeking(FixedBudget):
    """Would leave out guesses for their own chances, which is biased."""

    shown = 0

    def trim(self, draft):
        self.shown += draft.nodes
        return Draft([DraftTree()] * len(draft.trees))


@pytest.mark.parametrize("rule", ["rejection", "traversal"])
def test_a_width_is_not_shown_the_guesses_that_were_drawn(rule):
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=24, ignore_eos=True)
    texts = []
    for budget in (Peeking(6), FixedBudget(6)):
        (answer,) = finish(
            engine(target(), drafter("lm"), budget, rule=rule),
            [Request(prompts()[1], params)],
        )
        assert answer.sequence.stats.accepted > 0
        texts.append((answer.tokens, [delta.drafted for delta in answer.deltas]))
        assert not getattr(budget, "shown", 0)
    assert texts[0] == texts[1]
    seen = Peeking(6)
    finish(
        engine(target(), drafter("ngram"), seen, rule=rule),
        [Request(prompts()[2], params)],
    )
    assert seen.shown, "those that were chosen it may drop"


def test_a_favour_to_the_draft_models_guesses_would_be_seen(monkeypatch):
    """A guess that is refused by a little is let through."""
    honest = RULES["rejection"]

    def eager(distributions, draft_tokens, noise):
        return honest.verify(
            distributions, draft_tokens, replace(noise, accept=noise.accept * 0.5)
        )

    monkeypatch.setitem(RULES, "rejection", replace(honest, verify=eager))
    places, _ = ranks("rejection", texts=24, tokens=32, temperature=1.0)
    assert kstest(places, "uniform").pvalue < LEVEL
