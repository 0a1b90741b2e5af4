"""Rounds of fixed budgets on the same prompts: accepted tokens, seconds by step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from jaxtyping import Float

from foreword.api.session import Session
from foreword.budget import FixedBudget
from foreword.budget.base import RoundResult
from foreword.types import Request, SamplingParams
from foreword.verify import Rule, rule
from foreword_lab.bench.records import Round

LONGEST = 8
"""Draft tokens. Most of a measured pass; the best of a small draft model is below."""
WARM_TOKENS = 16
"""Tokens of the answer that is generated first, at every budget, and not counted."""

Counts = Float[np.ndarray, "prompt budget depth 2"]
"""Passes in which the draft token of a depth was accepted, and in which it was scored
and the draft tokens before it were accepted.
"""


def chain_rule() -> Rule:
    """Return `match` for chains alone, which the formulas are about.

    Its text does not depend on the draft, so all budgets are measured on one text.
    """
    return replace(rule("match"), lists="one")


class RoundLog(FixedBudget):
    """Fixed budget that records every round."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.rounds: list[Round] = []

    def learn(self, request: Request, outcome: RoundResult) -> None:
        clock = outcome.clock
        self.rounds.append(
            Round(
                tokens=outcome.accepted + 1,
                drafted=outcome.drafted,
                accepted=outcome.accepted,
                seconds=clock.total,
                clock=clock,
                reading=outcome.reading,
            )
        )


@dataclass(slots=True)
class Answers:
    """Passes of every prompt at every budget, at one temperature."""

    passes: list[list[list[Round]]] = field(default_factory=list)
    """By prompt, then by draft tokens from 0 to LONGEST."""
    tokens: list[list[int]] = field(default_factory=list)
    """Answer of each prompt, by plain decoding."""

    def counts(self) -> Counts:
        """Return accepted and tried draft tokens by depth."""
        counts = np.zeros((len(self.passes), LONGEST + 1, LONGEST, 2))
        for (prompt, budget), passes in self._by_run():
            for round_ in passes:
                counts[prompt, budget, : round_.accepted, 0] += 1
                counts[prompt, budget, : round_.verified, 1] += 1
        return counts

    def decoding(self) -> list[Round]:
        """Return all passes that read no prompt."""
        every = [one for _, passes in self._by_run() for one in passes]
        return [one for one in every if not one.reading]

    def _by_run(self) -> Iterable[tuple[tuple[int, int], list[Round]]]:
        runs = product(range(len(self.passes)), range(LONGEST + 1))
        return [((at, budget), self.passes[at][budget]) for at, budget in runs]


def measure(
    session: Session,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    budgets: Sequence[int] = range(LONGEST + 1),
) -> Answers:
    """Answer every prompt with every budget, interleaved; the first one is 0, plain
    decoding.

    The seeds of the prompts count up from `params.seed`. Budgets and temperatures share
    no past answers: a drafter that looks tokens up must not have seen the answer.
    """
    answers = Answers()
    tenant = f"doctor-{params.temperature:g}"
    for number, prompt in enumerate(prompts):
        if not number:
            short = min(WARM_TOKENS, params.max_tokens)
            warm = replace(params, max_tokens=short, tenant="doctor-warm")
            _runs(session, prompt, warm, budgets)
        seed = (params.seed or 0) + number
        prompt_params = replace(params, seed=seed, tenant=tenant)
        passes, tokens = _runs(session, prompt, prompt_params, budgets)
        answers.passes.append(passes)
        answers.tokens.append(tokens)
    return answers


def _runs(
    session: Session,
    prompt: Sequence[int],
    params: SamplingParams,
    budgets: Sequence[int],
) -> tuple[list[list[Round]], list[int]]:
    """Return the passes of one answer at every budget up to LONGEST, none at those left
    out, and its tokens by plain decoding.
    """
    logs = {count: RoundLog(count) for count in budgets}
    plain: list[int] = []
    for log in logs.values():
        session.engine.default.budget = log
        run_params = replace(params, tenant=f"{params.tenant}-{log.count}")
        (request,) = session.prepare(list(prompt), run_params)
        session.begin(request)
        try:
            deltas = list(session.deltas(request))
        finally:
            session.forget(request)
        plain = plain or session.completion(request, deltas).tokens
    passes = [
        logs[count].rounds if count in logs else [] for count in range(LONGEST + 1)
    ]
    return passes, plain
