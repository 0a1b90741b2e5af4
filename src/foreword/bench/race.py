"""Interleaved runs: every entry answers the same request in turn; an entry that fails
is excluded from then on.
"""

from __future__ import annotations

from time import sleep

from foreword.bench.exclusions import Exclusions
from foreword.bench.lineup import PLAIN_ROW, Lineup
from foreword.bench.oracle import NAME as ORACLE
from foreword.bench.records import Request
from foreword.bench.report import Results

REST = 0.02
"""Seconds of pause before each turn. A runtime's threads, above all OpenMP's, spin for
milliseconds after their work; the next entry must not compete with them."""


class Race:
    """Runs requests on all entries and keeps the trials of those that are not
    excluded.
    """

    def __init__(self, entrants: Lineup, out: Exclusions) -> None:
        self.results: Results = {}
        self._entrants, self._out = entrants, out

    def run(self, request: Request, turn: int, *, counts: bool = True) -> None:
        """Run one request on every entry. The order rotates with `turn`; the oracle is
        last.

        If not `counts`, as in a warm-up, no trial is kept.
        """
        entrants = self._entrants.entries
        order = [*entrants[turn % len(entrants) :], *entrants[: turn % len(entrants)]]
        # The oracle needs the answer of plain decoding.
        for entry in sorted(order, key=lambda entrant: entrant.name == ORACLE):
            if entry.name in self._out:
                continue
            sleep(REST)
            with self._out.unless(entry.name):
                trial = entry.run(request)
                if counts:
                    kept = self.results.setdefault(
                        (entry.name, request.temperature), {}
                    )
                    kept.setdefault(request.name, []).append(trial)
                if entry.name == PLAIN_ROW:
                    self._entrants.oracle.record_answer(
                        request.prompt, request.temperature, request.seed, trial.tokens
                    )
            # a mean over only the prompts before the failure is not comparable
            if entry.name in self._out:
                self.results = {
                    key: kept
                    for key, kept in self.results.items()
                    if key[0] != entry.name
                }
