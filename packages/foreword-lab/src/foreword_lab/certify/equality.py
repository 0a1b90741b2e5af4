"""Same seed, same text: plain decoding against one drafting method, request by
request.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from foreword.api.llm import LLM
from foreword.registry import DEFAULT_RULE
from foreword.types import Completion
from foreword_lab.certify.cases import FREE, Case
from foreword_lab.certify.drafting import Drafting
from foreword_lab.certify.numerics import Difference, difference
from foreword_lab.certify.report import Check, Status
from foreword_lab.certify.runs import PREEMPTED, outcomes
from foreword_lab.certify.setups import Setup

EVERY = "every text"
SPOILT = 6
"""Tokens. Every so many of the expected answer, one is wrong."""
SHOWN = 10
"""Differences that a report lists."""


@dataclass(slots=True)
class SameText:
    """The comparison of one method with plain decoding, over all turns."""

    drafting: Drafting
    missing: Mapping[str, str] = field(default_factory=dict)
    """Conditions that no turn had, and why."""
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    """By condition; all of them under EVERY."""
    proving: Counter[str] = field(default_factory=Counter)
    """Runs in which draft tokens were accepted: the others prove nothing."""
    differences: list[Difference] = field(default_factory=list)
    failure: str | None = None
    """The last error of the drafter."""

    def compare(
        self,
        llm: LLM,
        cases: Sequence[Case],
        plain: Sequence[Completion],
        setup: Setup,
    ) -> None:
        """Run the requests of one turn with drafting, and compare their texts."""
        speculator = self.drafting.speculator(llm, DEFAULT_RULE, setup.nodes)
        hinted = [
            expecting(case, known.tokens)
            for case, known in zip(cases, plain, strict=True)
        ]
        drafted = outcomes(llm, hinted, speculator, setup.conditions)
        self.failure = speculator.failed or self.failure
        for case, known, outcome in zip(cases, plain, drafted, strict=True):
            answer, preempted = outcome
            held = [*case.conditions, *setup.conditions]
            if PREEMPTED in held and not preempted:
                held.remove(PREEMPTED)
            self._count(answer, held)
            mismatch = difference(llm, case, known, answer)
            if mismatch is not None:
                self.differences.append(mismatch)

    def _count(self, drafted: Completion, conditions: list[str]) -> None:
        stats = drafted.stats
        self.tokens += len(drafted.tokens)
        self.drafted += stats.drafted
        self.accepted += stats.accepted
        counted = [EVERY, *conditions]
        self.runs.update(counted)
        if stats.accepted:
            self.proving.update(counted)

    def check(self) -> Check:
        """Return the outcome."""
        return Check(
            f"same text: {self.drafting.name}",
            self._status,
            self._sentence(),
            self._evidence(),
        )

    @property
    def _faults(self) -> list[Difference]:
        return [one for one in self.differences if not one.is_numerics]

    @property
    def _status(self) -> Status:
        if self._faults:
            return "differs"
        if self.differences:
            return "numerics"
        return "consistent" if self._proves else "cannot say"

    @property
    def _proves(self) -> bool:
        """Whether draft tokens of the method itself were accepted."""
        return self.proving[FREE] > 0

    def _sentence(self) -> str:
        faults, runs = len(self._faults), self.runs[EVERY]
        if faults:
            return f"{faults} of {runs} texts differ from plain decoding"
        if self.differences:
            return (
                f"{len(self.differences)} of {runs} texts differ, all where two "
                "tokens are within rounding"
            )
        if not self._proves:
            reason = f": {self.failure}" if self.failure else ""
            return f"no draft token was accepted in any free text{reason}"
        return (
            f"{runs} texts equal plain decoding, {self.tokens:,} tokens; draft "
            f"tokens were accepted in {self.proving[EVERY]} of them{self._gaps()}"
        )

    def _gaps(self) -> str:
        gaps = [name for name in self.runs if not self.proving[name]]
        missing = [name for name in self.missing if name not in self.runs]
        text = f", in none of: {', '.join(gaps)}" if gaps else ""
        return text + (f"; left out: {', '.join(missing)}" if missing else "")

    def _evidence(self) -> dict[str, Any]:
        shown = [one.as_json() for one in (self._faults or self.differences)[:SHOWN]]
        return {
            "texts": self.runs[EVERY],
            "texts with accepted draft tokens": self.proving[EVERY],
            "tokens": self.tokens,
            "draft tokens": self.drafted,
            "accepted draft tokens": self.accepted,
            "conditions": {
                name: {
                    "texts": self.runs[name],
                    "with accepted draft tokens": self.proving[name],
                }
                for name in sorted(self.runs)
                if name != EVERY
            },
            "left out": {
                name: why for name, why in self.missing.items() if name not in self.runs
            },
            "differences": len(self.differences),
            "differences by rounding": len(self.differences) - len(self._faults),
            "first differences": shown,
        }


def expecting(case: Case, tokens: list[int]) -> Case:
    """Return the request with an expected answer for methods that copy from one: nearly
    that of plain decoding.
    """
    hint = [
        case.prompt[0] if at % SPOILT == SPOILT - 1 else token
        for at, token in enumerate(tokens)
    ]
    return Case(case.prompt, replace(case.params, prediction=tuple(hint)))
