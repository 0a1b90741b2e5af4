"""What a choice of a method tells `auto` about later requests."""

from __future__ import annotations

from foreword.api.session import Session
from foreword.budget import AdaptiveBudget
from foreword.budget.kept import kind_name
from foreword.engine.speculator import kept_speeds
from foreword.registry import DEFAULT_RULE, PLAIN
from foreword.tune.chosen import Chosen
from foreword.types import SamplingParams


def keep_speeds(session: Session, chosen: Chosen) -> None:
    """Keep the best speed of each method, measured or predicted, for requests that are
    sampled like these.
    """
    target = session.target
    kept = kept_speeds(target)
    params = SamplingParams(temperature=chosen.temperature)
    sort = params.greedy, params.plain
    kind = kind_name(DEFAULT_RULE, AdaptiveBudget.__name__, sort, bits=1)
    for method, speed in speeds(chosen).items():
        kept.record(kind, session.label(method), speed, chosen.prompts)


def speeds(chosen: Chosen) -> dict[str, float]:
    """Return the best speed over plain decoding of each method under the default rule:
    measured where it was timed.
    """
    found: dict[str, float] = {}
    timed = {one.arm.method for one in chosen.confirmations}
    for one in chosen.predictions:
        if one.arm.method not in timed and one.arm.rule == DEFAULT_RULE:
            found.setdefault(one.arm.method, one.over_plain.mid)
    for one in chosen.confirmations:
        if one.arm.method != PLAIN and one.arm.rule == DEFAULT_RULE:
            speed = one.measured.mid
            found[one.arm.method] = max(found.get(one.arm.method, 0.0), speed)
    return found
