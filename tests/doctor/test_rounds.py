"""The rounds of a drafter have the acceptance and the costs that were put in."""

from dataclasses import replace
from random import Random

import pytest

import starter
from drafters import Foresight
from foreword import LLM, SamplingParams
from foreword.budget import FixedBudget
from foreword.engine import Engine
from foreword.engine.scheduler import Scheduler
from foreword.model.cost import Cost
from foreword.types import Clock
from foreword_lab.bench.records import Round
from foreword_lab.doctor.figures import figures
from foreword_lab.doctor.rounds import LONGEST, Answers, chain_rule, measure
from running import TEXTS

TARGET = str(starter.target())
STEP, TOKEN, START, REST = 1e-3, 1e-4, 2e-4, 5e-5
"""Seconds of the made passes."""
TABLE = Cost({1: 2e-3, 9: 4e-3, 64: 16e-3}, context=128)


def made(accepts: dict[bool, float], prompts: int = 60, passes: int = 80):
    """Answers whose acceptance depends on what the pass has accepted before."""
    dice, answers = Random(3), Answers()
    for _ in range(prompts):
        answers.passes.append(
            [
                [drawn(dice, accepts, budget) for _ in range(passes)]
                for budget in range(LONGEST + 1)
            ]
        )
        answers.tokens.append([])
    return answers


def drawn(dice: Random, accepts: dict[bool, float], budget: int) -> Round:
    accepted = 0
    while accepted < budget and dice.random() < accepts[accepted > 0]:
        accepted += 1
    propose = START + budget * TOKEN if budget else 0.0
    return timed(propose, STEP, budget, accepted)


def timed(propose: float, score: float, drafted: int = 0, accepted: int = 0) -> Round:
    clock = Clock(propose, score, REST)
    return Round(accepted + 1, drafted, accepted, clock.total, clock)


def test_acceptance_is_counted_by_depth():
    found = figures(made({False: 0.5, True: 0.9}), TABLE)
    assert found.first == pytest.approx(0.5, abs=0.05)
    assert found.by_depth == pytest.approx([0.5, *[0.9] * (LONGEST - 1)], abs=0.05)


def test_costs_are_found_in_steps_of_the_target():
    found = figures(made({False: 0.7, True: 0.7}), TABLE)
    assert found.step == STEP
    assert found.cost.token == pytest.approx(TOKEN / STEP)
    assert found.cost.start == pytest.approx(START / STEP)
    assert found.cost.overhead == pytest.approx(REST / STEP)
    assert found.cost.scoring[0] == 1
    assert found.cost.scoring[8] == pytest.approx(2)


def test_drafts_that_were_cut_off_do_not_lower_the_tokens():
    """The last draft of an answer is short, however well it would have gone on."""
    answers = made({False: 1.0, True: 1.0}, prompts=3)
    for budgets in answers.passes:
        for budget in range(1, LONGEST + 1):
            budgets[budget].append(timed(TOKEN, STEP, 1, 1))
    assert figures(answers, TABLE).by_depth == (1.0,) * LONGEST


def test_passes_that_read_the_prompt_are_not_timed():
    answers = made({False: 0.7, True: 0.7}, prompts=3)
    for budgets in answers.passes:
        for passes in budgets:
            passes[:0] = [replace(timed(9.0, 9.0), reading=True)]
    found = figures(answers, TABLE)
    assert found.step == STEP
    assert found.cost.token == pytest.approx(TOKEN / STEP)


@pytest.mark.slow
def test_spoilt_truth_is_accepted_as_often_as_it_is_right():
    """A drafter right with probability 0.75, at every depth."""
    llm = LLM(TARGET, method="none", nodes=1)
    prompts = [llm.tokenizer(text)["input_ids"] for text in TEXTS]
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    truth = {
        tuple(one.prompt_tokens): one.tokens for one in llm.generate(prompts, params)
    }
    drafter = Foresight(lambda s: truth[tuple(s.tokens[: s.prompt])], spoilt=0.25)
    llm.session.engine = Engine(
        llm.target, drafter, chain_rule(), FixedBudget(1), Scheduler()
    )
    answers = measure(llm.session, prompts, params)
    assert answers.tokens == [truth[tuple(prompt)] for prompt in prompts]
    for passes, tokens in zip(answers.passes, answers.tokens, strict=True):
        sums = [sum(one.accepted + 1 for one in budget) for budget in passes]
        assert sums == [len(tokens)] * (LONGEST + 1)
    found = figures(answers, llm.target.cost)
    assert found.first == pytest.approx(0.75, abs=0.1)
    assert found.by_depth[0] == pytest.approx(0.75, abs=0.1)
