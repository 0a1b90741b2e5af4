"""A draft model whose forward takes .4 of the target's (Qwen2.5-Coder-0.5B of 1.5B)."""

import random

import pytest

from foreword.budget import AdaptiveBudget, Costs, FixedBudget
from foreword.types import Clock, Draft, DraftTree, Request, SamplingParams
from policy import Policy

TARGET = {1: 0.0365, 2: 0.0365, 4: 0.0446, 8: 0.066, 16: 0.111, 32: 0.212}
"""Seconds of a forward of the target by its rows."""
LOADED = {rows: 2.5 * cost * (1 + (rows > 4)) for rows, cost in TARGET.items()}
"""The same, measured beside other programs."""
FORWARD, READING, FIRST = 0.014, 0.0026, 0.9
"""Seconds of a forward of the draft model, of a prompt token, and of its first call."""
SURE = {0: ((0.62, 0.995), (0.26, 0.85), (0.12, 0.5))}
SURE[1] = ((0.45, 0.99), (0.3, 0.8), (0.25, 0.45))
"""By temperature: shares of the tokens, and the probability that the draft states."""
ANSWERS, LENGTH, PROMPT = 12, 96, 60


def seconds(policy: Policy, heat: int, slow: float = 0.0) -> list[float]:
    """Return the seconds of answers; a share `slow` of rounds takes up to thrice."""
    costs, took, stalls = Costs(TARGET), [], random.Random(5)
    for answer in range(ANSWERS):
        coins = random.Random(answer)
        shares, stated = zip(*SURE[heat], strict=True)
        text = coins.choices(stated, shares, k=2 * LENGTH)
        comes = [coins.random() < probability for probability in text]
        params = SamplingParams(temperature=float(heat), max_tokens=LENGTH)
        one = Request(100 * heat + answer, [1] * PROMPT, PROMPT, params, seed=0)
        rounds = []
        while one.room:
            at, reached, chain = one.produced, 1.0, []
            most = 0 if one.room == 1 else policy.nodes([one])[0]
            forwards = 0
            floor, expand = getattr(policy.budget, "floors", (0.0, 0.0))
            while len(chain) < most and forwards == len(chain) < 24:
                if chain and reached <= expand:
                    break
                forwards += 1
                reached *= text[at + len(chain)]
                if reached > floor:
                    chain.append(reached)
            propose = FORWARD * forwards
            if most and not at:
                propose += READING * PROMPT if answer else FIRST
            made = DraftTree([7] * len(chain), list(range(-1, len(chain) - 1)), chain)
            (made,) = policy.trim(Draft([made])).trees
            kept = next((k for k in range(len(made)) if not comes[at + k]), len(made))
            kept = min(kept, one.room - 1)
            stall = 1 + 2 * stalls.random() * (stalls.random() < slow)
            clock = Clock(propose * stall, costs.seconds(1 + len(made)) * stall, 0.002)
            reading = 0 if at else PROMPT
            policy.learn([one], [most], [len(made)], [kept], clock, reading)
            one.tokens += [1] * (kept + 1)
            rounds.append(clock.total)
        policy.release(one)
        took.append(sum(rounds[1:]))
    return took


@pytest.mark.parametrize(
    ("measured", "slow", "heat"),
    [(TARGET, 0.0, 0), (TARGET, 0.3, 1), (LOADED, 0.0, 0), (LOADED, 0.3, 0)],
    ids=["idle", "busy", "loaded", "loaded, busy"],
)
def test_a_draft_model_that_agrees_is_used(measured, slow, heat):
    policies = [Policy(measured, FixedBudget(count)) for count in (0, 1, 2, 3, 5)]
    fixed = [seconds(policy, heat, slow) for policy in policies]
    took = seconds(Policy(measured), heat, slow)
    plain, best = sum(fixed[0][2:]), min(sum(one[2:]) for one in fixed)
    assert best < 0.85 * plain, "drafting pays here"
    assert sum(took[2:]) < 1.05 * best
    if not slow:
        assert took[0] < 1.1 * min(one[0] for one in fixed)


def test_the_cost_of_drafting_is_that_of_the_tokens_that_were_made():
    """How many are requested changes slowly: the chain ends at an unlikely token."""
    policy = Policy(TARGET)
    seconds(policy, 0)
    assert isinstance(policy.budget, AdaptiveBudget)
    terms = policy.budget.terms
    assert terms.proposing(0) < 0.2 * FORWARD
    assert terms.each == pytest.approx(FORWARD, rel=0.1)
