"""Causes of low acceptance: training, temperature, and lookups that find nothing."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import mean, stdev

from foreword.draft.none import NoDrafter
from foreword.draft.tree.drafter import ModelDrafter
from foreword_lab.doctor.figures import SURE
from foreword_lab.doctor.finding import MATTERS, Finding, would_be
from foreword_lab.doctor.measured import MeasuredPair

RARE, GOOD = 0.1, 0.4
"""Share of first draft tokens accepted: below RARE something is wrong, from GOOD on a
drafter is well trained.
"""
TRAINED = 0.7
"""Share accepted at each depth that training can reach: the bundled draft model has
0.61 to 0.76 on the kinds of text that it was trained on.
"""
SELDOM = 0.5
"""Share of the passes with a draft token, below which a drafter finds too little."""
PART = 3
"""The first and the last of so many parts of the answers are compared."""
TRAIN = "Train it on the target's answers: foreword data regenerate, foreword train"


def low(pair: MeasuredPair) -> list[Finding]:
    """Compare the accepted share of first draft tokens with a trained drafter's."""
    name, measured = "low acceptance", pair.figures
    if not any(one.tried for one in measured.values()):
        return []
    shares = ", ".join(
        f"{one.first:.0%} at temperature {heat}" for heat, one in measured.items()
    )
    best = max(one.first for one in measured.values())
    if best >= GOOD:
        evidence = f"first draft tokens accepted: {shares}"
        return [Finding("good", "acceptance", evidence)]
    could = pair.greedy.accepting(TRAINED).best
    cost = could / pair.greedy.best
    trained = would_be(could, f"{TRAINED:.0%} were accepted at each depth")
    if best >= RARE:
        evidence = f"few first draft tokens are accepted: {shares}; {trained}"
        return [Finding("note", name, evidence, TRAIN, cost, could)]
    evidence = f"hardly any first draft token is accepted: {shares}; {trained}"
    remedy = (
        "It was trained for other weights of this target, on other texts, or with "
        f"another chat template. {TRAIN}"
    )
    return [Finding("bad", name, evidence, remedy, cost, could)]


def temperature(pair: MeasuredPair) -> list[Finding]:
    """Compare the acceptance at temperature 1 with that at 0."""
    cold, hot = pair.greedy, pair.sampled
    could = hot.with_acceptance(cold).best
    if not cold.clearly_above(hot) or could < MATTERS * hot.best:
        return []
    evidence = (
        f"{hot.first:.0%} of the first draft tokens are accepted at temperature 1, and "
        f"{cold.first:.0%} at 0; at 1 the speed is {hot.best:.2f}× plain "
        f"decoding, with the acceptance of 0 it would be {could:.2f}×"
    )
    remedy = (
        "Lower the temperature where answers allow it, or train the drafter on answers "
        "sampled at temperature 1 (foreword data regenerate)"
    )
    return [
        Finding(
            "note",
            "temperature",
            evidence,
            remedy,
            cost=could / hot.best,
            speed=could,
        )
    ]


def nothing_to_draft(pair: MeasuredPair) -> list[Finding]:
    """Report a drafter that has draft tokens in few passes."""
    now = pair.greedy
    if now.drafting >= SELDOM or isinstance(pair.session.engine.drafter, NoDrafter):
        return []
    could = replace(now, drafting=1.0).best
    evidence = f"it has draft tokens in only {now.drafting:.0%} of the passes"
    if now.drafting:
        evidence += "; " + would_be(could, "it had some in all")
    remedy = (
        "Give it text to look up (foreword index, past answers of the same tenant), or "
        "draft with a model: --draft"
    )
    level = "note" if now.drafting else "bad"
    cost = could / now.best
    return [Finding(level, "nothing to draft", evidence, remedy, cost, could)]


def warming(pair: MeasuredPair) -> list[Finding]:
    """Compare the first answers with the last, of a drafter that learns from text."""
    drafter, now = pair.session.engine.drafter, pair.greedy
    size = len(now.by_answer) // PART
    learns = drafter.about.looks_up or isinstance(drafter, ModelDrafter)
    if size < 2 or not learns:
        return []
    early, late = now.by_answer[:size], now.by_answer[-size:]
    noise = SURE * (_error(early) ** 2 + _error(late) ** 2) ** 0.5
    gain = mean(late) / now.tokens_per_pass
    if mean(late) - mean(early) <= noise or gain < MATTERS:
        return []
    evidence = (
        f"{mean(early):.2f} tokens per pass in the first {size} answers, "
        f"{mean(late):.2f} in the last {size}: it learns from earlier text"
    )
    remedy = (
        "Keep the process running, send like prompts under one tenant, or build a "
        "store of past answers (foreword index)"
    )
    could = gain * now.best
    return [Finding("note", "cold lookups", evidence, remedy, gain, could)]


def _error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of at least two values."""
    return stdev(values) / len(values) ** 0.5
