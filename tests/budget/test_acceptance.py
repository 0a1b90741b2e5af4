"""The accepted share agrees with the two models' distributions, under each rule."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from foreword.types import Request, SamplingParams
from grids import slow_case
from running import (
    DTYPE,
    Case,
    distribution,
    draft,
    drafter,
    engine,
    finish,
    prompts,
    target,
)

TEXTS, TOKENS = 20, 48
"""About 600 rounds: a share that is wrong by 0.06 is seen (three standard errors)."""


@cache
def rounds(rule: str, temperature: float) -> tuple[list[int], list[Request]]:
    """One draft token a round: which of them were kept, text by text, and the texts."""
    long = SamplingParams(temperature=temperature, max_tokens=TOKENS, ignore_eos=True)
    requests = [Case(prompts()[n % 5], replace(long, seed=n)) for n in range(TEXTS)]
    loop = engine(target(DTYPE), drafter("lm", DTYPE), 1, rule=rule, slots=5)
    answers = finish(loop, requests)
    deltas = [answer.deltas for answer in answers]
    return deltas, [answer.request for answer in answers]


def predicted(rule: str, p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The probability that one draft token is kept, row by row."""
    if rule == "rejection":  # Leviathan et al. 2023, theorem 3.5
        return torch.minimum(p, q).sum(-1)
    # Daliri, Musco, Suresh 2024: with one Gumbel noise both draw x with the probability
    # 1 / sum_y max(p_y/p_x, q_y/q_x). The first is the larger for the y whose p_y/q_y
    # is no smaller than that of x: sums over tokens in that order.
    order = (p / q).argsort(-1)
    ours, theirs = p.gather(-1, order).double(), q.gather(-1, order).double()
    above = ours.flip(-1).cumsum(-1).flip(-1)
    below = theirs.cumsum(-1) - theirs
    return (1 / (above / ours + below / theirs)).nan_to_num(0.0).sum(-1)


# each rule and each temperature once; `make test-all` has the other pairs too
PAIRS = [("rejection", 0.7), ("match", 1.0)]
SLOW = [("rejection", 1.0), ("match", 0.7)]
PAIRS += [slow_case(*pair) for pair in SLOW]


@pytest.mark.parametrize(("rule", "temperature"), PAIRS)
def test_acceptance_follows_the_two_distributions(rule, temperature):
    all_deltas, sequences = rounds(rule, temperature)
    kept, probabilities = [], []
    for deltas, sequence in zip(all_deltas, sequences, strict=True):
        p, q = (
            (distribution(model, sequence.tokens) / temperature).softmax(-1)
            for model in (target(DTYPE), draft(DTYPE))
        )
        place = sequence.prompt
        for delta in deltas:
            if delta.drafted:
                kept.append(float(delta.origins[0] == "accepted"))
                before = slice(place - 1, place)
                probabilities.append(predicted(rule, p[before], q[before])[0])
            place += len(delta.tokens)
    # Given the text so far, a round is kept with its own probability: the sum of what
    # is left over is a martingale.
    expected = torch.stack(probabilities).double()
    surplus = torch.tensor(kept).double() - expected
    error = (expected * (1 - expected)).sum().sqrt() / len(kept)
    assert len(kept) > 450
    assert error < 0.02, "too few rounds to say anything"
    assert abs(surplus.mean()) < 3 * error, f"{expected.mean():.3f} expected"


def test_prediction_for_shared_noise_is_that_of_drawing_with_it():
    rng = torch.Generator().manual_seed(0)
    p, q = (torch.randn(1, 12, generator=rng).mul(1.5).softmax(-1) for _ in range(2))
    uniform = torch.rand(200_000, 12, generator=rng, dtype=torch.float64)
    noise = -torch.log(-torch.log(uniform))
    ours, theirs = ((one.log() + noise).argmax(-1) for one in (p, q))
    same = (ours == theirs).double().mean()
    assert abs(same - predicted("match", p, q)[0]) < 4 * (0.25 / 200_000) ** 0.5
    assert predicted("match", p, q)[0] < predicted("rejection", p, q)[0]
    assert predicted("match", p, p)[0] == pytest.approx(1, abs=1e-5)
