"""Interleaved runs: every entry answers the same request in turn; an entry that fails
is excluded from then on.
"""

from collections.abc import Sequence
from time import sleep
from typing import TypeVar

from foreword_lab.bench.exclusions import Exclusions
from foreword_lab.bench.lineup import PLAIN_ROW, Lineup
from foreword_lab.bench.oracle import NAME as ORACLE
from foreword_lab.bench.records import BenchRequest, Entry, Results, Trial

REST = 0.02
"""Seconds of pause before each turn. A runtime's threads, above all OpenMP's, spin for
milliseconds after their work; the next entry must not compete with them."""


T = TypeVar("T")


def rotated(entries: Sequence[T], turn: int) -> list[T]:
    """Return the entries of a turn, which begin one further in each turn."""
    first = turn % len(entries)
    return [*entries[first:], *entries[:first]]


class Race:
    """Runs requests on all entries and keeps the trials of those not excluded."""

    def __init__(self, entrants: Lineup, out: Exclusions) -> None:
        self.results: Results = {}
        self._entrants = entrants
        self._out = out

    def run(self, request: BenchRequest, turn: int, *, counts: bool = True) -> None:
        """Run one request on every entry. The order rotates with `turn`; the oracle is
        last.

        If not `counts`, as in a warm-up, no trial is kept.
        """
        order = rotated(self._entrants.entries, turn)
        # The oracle needs the answer of plain decoding.
        order.sort(key=lambda entry: entry.name == ORACLE)
        for entry in order:
            if entry.name in self._out:
                continue
            sleep(REST)
            with self._out.unless(entry.name):
                trial = self._answer(entry, request)
                if counts:
                    self._keep(entry.name, request, trial)
            # a mean over only the prompts before the failure is not comparable
            if entry.name in self._out:
                self._drop(entry.name)

    def _answer(self, entry: Entry, request: BenchRequest) -> Trial:
        trial = entry.run(request)
        if entry.name == PLAIN_ROW:
            self._entrants.oracle.record_answer(
                request.prompt,
                request.temperature,
                request.seed,
                trial.tokens,
            )
        return trial

    def _keep(self, name: str, request: BenchRequest, trial: Trial) -> None:
        trials = self.results.setdefault((name, request.temperature), {})
        trials.setdefault(request.name, []).append(trial)

    def _drop(self, name: str) -> None:
        for key in [key for key in self.results if key[0] == name]:
            del self.results[key]
