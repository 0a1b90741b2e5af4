"""The measurement finds the acceptance and costs put in, and equation 1's error."""

import json
from dataclasses import replace
from random import Random

import pytest

import starter
from drafters import Foresight
from foreword import LLM, SamplingParams
from foreword.budget import FixedBudget
from foreword.engine import Engine
from foreword.engine.scheduler import Scheduler
from foreword.errors import InvalidRequest
from foreword.model.cost import Cost
from foreword.types import Clock
from foreword_lab.bench.records import Round
from foreword_lab.theory.formulas import expected_tokens
from foreword_lab.theory.report import summarize
from foreword_lab.theory.rounds import LONGEST, Answers, chain_rule, measure
from foreword_lab.theory.run import TheoryOptions, examine
from running import TEXTS

TARGET, DRAFT = str(starter.target()), str(starter.draft())
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


def test_independent_acceptance_follows_equation_1():
    heat = summarize(made({False: 0.7, True: 0.7}), 0.0, TABLE)
    assert heat.alpha.mid == pytest.approx(0.7, abs=0.02)
    assert [point.gamma for point in heat.points] == [*range(1, LONGEST + 1)]
    for point in heat.points:
        assert point.tokens.mid == pytest.approx(
            expected_tokens(0.7, point.gamma), rel=0.03
        )
        assert point.error.mid == pytest.approx(0, abs=0.04)


@pytest.mark.slow
def test_error_shows_acceptance_that_is_not_independent():
    heat = summarize(made({False: 0.5, True: 0.9}), 0.0, TABLE)
    assert heat.by_depth == pytest.approx([0.5, *[0.9] * (LONGEST - 1)], abs=0.05)
    longest = heat.points[-1]
    truth = 1 + 0.5 * sum(0.9**depth for depth in range(LONGEST))
    assert longest.tokens.low < truth < longest.tokens.high
    expected = expected_tokens(0.5, LONGEST) / truth - 1
    assert longest.error.low < expected < longest.error.high < 0
    assert heat.points[0].error.mid == 0


def test_stall_counts_little():
    answers = made({False: 0.7, True: 0.7}, prompts=6)
    answers.passes[2][4][7] = timed(START + 4 * TOKEN, 1000.0, 4, 4)
    calm = summarize(made({False: 0.7, True: 0.7}, prompts=6), 0.0, TABLE)
    for point, other in zip(
        summarize(answers, 0.0, TABLE).points, calm.points, strict=True
    ):
        assert point.speed.mid == pytest.approx(other.speed.mid, rel=0.02)


@pytest.mark.slow
def test_first_draft_tokens_of_long_passes_say_little_of_the_others():
    heat = summarize(made({False: 0.5, True: 0.9}), 0.0, TABLE)
    assert heat.after_rejection.high < -0.4
    heat = summarize(made({False: 0.7, True: 0.7}), 0.0, TABLE)
    assert heat.after_rejection.mid == pytest.approx(0, abs=0.04)


def test_costs_are_found_in_steps_of_the_target():
    heat = summarize(made({False: 0.7, True: 0.7}), 0.0, TABLE)
    assert heat.step == STEP
    assert heat.cost.token == pytest.approx(TOKEN / STEP)
    assert heat.cost.start == pytest.approx(START / STEP)
    assert heat.cost.overhead == pytest.approx(REST / STEP)
    assert heat.cost.scoring[0] == 1
    assert heat.cost.scoring[8] == pytest.approx(2)
    point = heat.points[3]
    pass_cost = 0.2 + 4 * 0.1 + 1.5 + 0.05
    assert point.with_tokens == pytest.approx(point.tokens.mid * 1.05 / pass_cost)
    assert point.theorem == pytest.approx(point.formula / 1.4)


def test_drafts_that_were_cut_off_do_not_lower_the_tokens():
    """The last draft of an answer is short, however well it would have gone on."""
    answers = made({False: 1.0, True: 1.0}, prompts=3)
    for budgets in answers.passes:
        for budget in range(1, LONGEST + 1):
            budgets[budget].append(timed(TOKEN, STEP, 1, 1))
    heat = summarize(answers, 0.0, TABLE)
    assert [point.tokens.mid for point in heat.points] == [*range(2, LONGEST + 2)]


def test_passes_that_read_the_prompt_are_not_timed():
    answers = made({False: 0.7, True: 0.7}, prompts=3)
    for budgets in answers.passes:
        for passes in budgets:
            passes[:0] = [replace(timed(9.0, 9.0), reading=True)]
    heat = summarize(answers, 0.0, TABLE)
    assert heat.step == STEP
    assert heat.cost.token == pytest.approx(TOKEN / STEP)


def test_without_a_draft_token_the_error_says_so():
    answers = Answers([[[timed(0.0, STEP)] for _ in range(LONGEST + 1)]])
    with pytest.raises(InvalidRequest, match="no draft token was scored"):
        summarize(answers, 0.0, TABLE)


@pytest.mark.slow
def test_spoilt_truth_is_accepted_as_often_as_it_is_right():
    """A drafter right with probability 0.75, so that equation 1 holds."""
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
    heat = summarize(answers, 0.0, llm.target.cost)
    assert heat.alpha.mid == pytest.approx(0.75, abs=0.1)
    assert heat.points[-1].formula == pytest.approx(
        heat.points[-1].tokens.mid, rel=0.25
    )


def test_pair_is_measured_on_its_own_prompts(tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"messages": [{"role": "user", "content": text}]} for text in TEXTS]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = examine(
        TheoryOptions(
            target=TARGET,
            draft=DRAFT,
            prompts=str(prompts),
            limit_prompts=3,
            tokens=24,
            temperatures=(0.0, 1.0, 1.0),
            device="cpu",
        )
    )
    assert (report.method, report.prompts) == ("lm", 3)
    assert [heat.temperature for heat in report.heats] == [0.0, 1.0]
    found = json.loads(json.dumps(report.as_json()))
    for heat in found["temperatures"]:
        assert 0 < heat["alpha"]["mid"] < 1
        first = heat["points"][0]
        assert first["formula"] == pytest.approx(first["tokens"]["mid"])
        assert heat["with_measured_cost"]["cost"]["scoring"][0] == 1
        assert len(heat["theorem_3_8"]["surface"]["speed"]) == 21


def test_plain_decoding_is_refused():
    with pytest.raises(InvalidRequest, match="it drafts nothing"):
        examine(TheoryOptions(method="none"))
