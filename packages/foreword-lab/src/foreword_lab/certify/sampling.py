"""Sampled tokens of the user's pair against the target's own distribution."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from foreword.api.llm import LLM
from foreword.sampling.logits import weights
from foreword.types import SamplingParams
from foreword_lab.bench.stats import LEVEL, Fit, confirmed, fit
from foreword_lab.certify.cases import TEXTS, Case, encoded
from foreword_lab.certify.drafting import Drafting
from foreword_lab.certify.numerics import next_logits
from foreword_lab.certify.report import Check, Status
from foreword_lab.certify.runs import BATCH, TOGETHER, run

KEPT = 4
"""Tokens. Alphabet of each position (top_k): few cells need few samples."""
DEPTH = 2
"""Tokens. Length of a sample."""
NODES = 3
"""Draft tokens a round."""
SECOND = 2**40
"""Distance of the seeds of samples that are drawn again."""

Cell = tuple[int, ...]


@dataclass(slots=True)
class Sampled:
    """Samples of one method under one rule."""

    drafting: Drafting
    rule: str
    counts: Counter[Cell] = field(default_factory=Counter)
    accepted: int = 0

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.counts.total()


class Distribution:
    """The test of one pair: one fixed prompt, and its exact distribution."""

    def __init__(self, llm: LLM, seed: int) -> None:
        self._llm = llm
        self._seed = seed
        self._prompt = encoded(llm, TEXTS[0])
        self.expected = self._expected()
        """Probability of each text of DEPTH tokens."""

    def sample(self, into: Sampled, start: int = 0) -> None:
        """Draw one batch with drafting."""
        first = self._seed + start + into.samples
        cases = [self._case(first + index) for index in range(BATCH)]
        speculator = into.drafting.speculator(self._llm, into.rule, NODES)
        for answer in run(self._llm, cases, speculator, [TOGETHER]):
            into.counts[tuple(answer.tokens[:DEPTH])] += 1
            into.accepted += answer.stats.accepted

    def fit(self, sampled: Sampled) -> Fit:
        """Test the samples against the exact distribution."""
        total = sampled.samples
        exact = self.expected
        cells = sorted(exact, key=lambda cell: -exact[cell])
        counts = [sampled.counts[cell] for cell in cells]
        if sum(counts) < total:
            # there are texts that the target never writes
            return Fit(total, len(cells), 0.0)
        return fit(counts, [total * exact[cell] for cell in cells])

    def _case(self, seed: int) -> Case:
        # one token more, or the last one would never be drafted
        params = SamplingParams(
            top_k=KEPT,
            seed=seed,
            max_tokens=DEPTH + 1,
            ignore_eos=True,
        )
        return Case(self._prompt, params)

    def _expected(self) -> dict[Cell, float]:
        masses: dict[Cell, float] = {(): 1.0}
        for _ in range(DEPTH):
            masses = {
                (*cell, token): mass * share
                for cell, mass in masses.items()
                for token, share in self._next(cell).items()
            }
        return masses

    def _next(self, cell: Cell) -> dict[int, float]:
        case = self._case(0)
        llm = self._llm
        prompt = list(case.prompt)
        (request,) = llm.session.prepare(prompt, case.params)
        request.tokens += cell
        logits = next_logits(llm, request.id, request.tokens)
        scores = weights(logits[None], request)[0]
        shares = scores.double().softmax(-1)
        tokens = shares.nonzero()[:, 0].tolist()
        return {token: float(shares[token]) for token in tokens}


def _fits(test: Distribution, sampled: Sampled) -> tuple[Fit, Fit | None]:
    """Return the test of the samples, and of as many new ones if it fails."""

    def draw(turn: int) -> Fit:
        drawn = sampled
        if turn:
            drawn = Sampled(sampled.drafting, sampled.rule)
        while drawn.samples < sampled.samples:
            test.sample(drawn, SECOND)
        return test.fit(drawn)

    return confirmed(draw)


def check_of(test: Distribution, method: str, samples: list[Sampled]) -> Check:
    """Return the outcome of one method under all rules."""
    name = f"sampled distribution: {method}"
    proving = [one for one in samples if one.accepted]
    if not proving:
        count = sum(one.samples for one in samples)
        what = f"no draft token was accepted in {count:,} samples"
        return Check(name, "cannot say", what)
    by_rule = {one.rule: _fits(test, one) for one in proving}
    bad = [rule for rule, fits in by_rule.items() if is_wrong(fits)]
    evidence = {one.rule: _evidence(one, by_rule[one.rule]) for one in proving}
    status: Status = "differs" if bad else "consistent"
    bound = max(first.detects for first, _ in by_rule.values())
    sentence = _sentence(by_rule, bad, bound)
    return Check(name, status, sentence, {"rules": evidence}, bound)


def is_wrong(fits: tuple[Fit, Fit | None]) -> bool:
    """Return whether both tests are below LEVEL."""
    return all(one is not None and one.p_value < LEVEL for one in fits)


def _sentence(
    by_rule: dict[str, tuple[Fit, Fit | None]],
    bad: list[str],
    bound: float,
) -> str:
    if bad:
        return f"other tokens than the target's under {', '.join(bad)}"
    count = sum(first.samples for first, _ in by_rule.values())
    names = [*by_rule]
    rules = f"{len(names)} rules" if names[1:] else f"the rule {names[0]}"
    return (
        f"{count:,} samples under {rules} have the target's distribution; "
        f"a total variation of {bound:.3f}, of texts of {DEPTH} tokens, is found with "
        "probability 0.9"
    )


def _evidence(sampled: Sampled, fits: tuple[Fit, Fit | None]) -> dict[str, Any]:
    first, second = fits
    return {
        "samples": first.samples,
        "cells": first.cells,
        "p-value": first.p_value,
        "p-value of new samples": None if second is None else second.p_value,
        "accepted draft tokens": sampled.accepted,
        "detected total variation": first.detects,
    }


def pairs(draftings: list[Drafting], rules: tuple[str, ...]) -> list[Sampled]:
    """Return an empty sample for each rule with each method that samples draft tokens,
    and with one that chooses them: rules treat all of the latter alike.
    """
    draws = [one for one in draftings if one.drafter.about.draws]
    chooses = [one for one in draftings if not one.drafter.about.draws]
    sampled = [*draws, *chooses[:1]]
    return [Sampled(one, rule) for one, rule in product(sampled, rules)]
