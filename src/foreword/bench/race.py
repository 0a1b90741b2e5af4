"""The contenders answer the same requests, turn by turn; one that fails is out of the race from then on.

Knows the order of turns; knows nothing about how a contender works or what is made of its trials.
"""

from __future__ import annotations

from time import sleep

from foreword.bench.leftout import LeftOut
from foreword.bench.lineup import PLAIN_ROW, Lineup
from foreword.bench.oracle import NAME as ORACLE
from foreword.bench.report import Results
from foreword.bench.trial import Request

REST = 0.02
"""Seconds before each turn. After its work the threads of a runtime, OpenMP's most of all, spin for milliseconds,
waiting for more; nobody shall compute beside those of another."""


class Race:
    """What everybody answered so far, those left out excepted."""

    def __init__(self, entrants: Lineup, out: LeftOut) -> None:
        self.results: Results = {}
        self._entrants, self._out = entrants, out

    def run(self, request: Request, turn: int, *, counts: bool = True) -> None:
        """Every contender answers one request. The order rotates with `turn`; the oracle is last.

        Where it does not count, as in a warm-up, no trial is kept.
        """
        entrants = self._entrants.contenders
        order = [*entrants[turn % len(entrants) :], *entrants[: turn % len(entrants)]]
        # The oracle must have heard what plain decoding says.
        for contender in sorted(order, key=lambda entrant: entrant.name == ORACLE):
            if contender.name in self._out:
                continue
            sleep(REST)
            with self._out.unless(contender.name):
                trial = contender.run(request)
                if counts:
                    kept = self.results.setdefault((contender.name, request.temperature), {})
                    kept.setdefault(request.name, []).append(trial)
                if contender.name == PLAIN_ROW:
                    self._entrants.oracle.foresee(request.prompt, request.temperature, request.seed, trial.tokens)
            if contender.name in self._out:  # an average over the prompts before it failed has no counterpart
                self.results = {key: kept for key, kept in self.results.items() if key[0] != contender.name}
