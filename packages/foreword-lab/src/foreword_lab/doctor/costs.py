"""Causes in the cost of a pass: drafting, its fixed part, and checking."""

from foreword.registry import DEFAULT_METHOD
from foreword_lab.doctor.finding import MATTERS, Finding, would_be
from foreword_lab.doctor.measured import MeasuredPair
from foreword_lab.doctor.rounds import LONGEST


def drafter(pair: MeasuredPair) -> list[Finding]:
    """Predict the speed if draft tokens were free."""
    now = pair.greedy
    evidence = (
        f"a draft token takes {1000 * now.propose:.2f} ms, {now.cost.token:.0%} of a "
        f"forward of the target ({1000 * now.step:.2f} ms)"
    )
    needed = now.cost.start + now.cost.token
    loses = now.nodes == 0 and needed > now.first
    could = now.at_cost(token=0.0).best
    if not loses and could < MATTERS * now.best:
        return [Finding("good", "cost of drafting", evidence)]
    remedy = (
        "Use a smaller drafter, a trained head, or a method without a model: --method "
        f"{DEFAULT_METHOD}"
    )
    level = "bad" if loses else "note"
    evidence += f"; {would_be(could, 'drafting were free')}"
    cost = could / now.best
    return [Finding(level, "dear drafter", evidence, remedy, cost, could)]


def fixed(pair: MeasuredPair) -> list[Finding]:
    """Predict the speed without the time that a draft takes however short it is."""
    now = pair.greedy
    start = now.cost.start
    could = now.at_cost(start=0.0).best
    if could < MATTERS * now.best:
        return []
    evidence = (
        f"a draft takes {1000 * start * now.step:.2f} ms however short it is, "
        f"{start:.0%} of a forward of the target, which takes only "
        f"{1000 * now.step:.2f} ms; {would_be(could, 'it took none')}"
    )
    remedy = "A larger target gains more from the same drafter"
    if pair.draft:
        remedy += (
            f"; this one may from a method without a model: --method {DEFAULT_METHOD}"
        )
    cost = could / now.best
    return [Finding("note", "fast target", evidence, remedy, cost, could)]


def checking(pair: MeasuredPair) -> list[Finding]:
    """Predict the speed if a forward over all draft tokens took as long as one row."""
    now = pair.greedy
    could = now.at_cost(scoring=()).best
    rows = 1 + LONGEST
    evidence = (
        f"a forward over {rows} rows takes {now.cost.scoring[LONGEST]:.2f} times as "
        "long as over 1"
    )
    if could < MATTERS * now.best:
        return [Finding("good", "cost of checking", evidence)]
    remedy = (
        f"Draft no more than pays: --nodes {max(1, now.nodes)}, or the default budget, "
        "which finds it. Serve fewer requests at a time; a larger target leaves more "
        "room"
    )
    evidence += f"; {would_be(could, 'checking were free')}"
    cost = could / now.best
    return [Finding("note", "dear checking", evidence, remedy, cost, could)]
