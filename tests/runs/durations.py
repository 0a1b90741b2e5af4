"""Seconds of each file of tests (tests/durations.json); `make durations` measures."""

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

BUSY = 0.5
"""Cores. Load average of other programs while durations are measured."""
FILE = Path(__file__).parents[1] / "durations.json"
LEAST = 0.5
"""Seconds. Files below are not written down: their order does not matter."""


def recorded() -> dict[str, float]:
    """Return the seconds of each file."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def file_of(nodeid: str) -> str:
    """Return the file of a test, from the repository on."""
    return nodeid.partition("::")[0]


def longest_first(items: list[pytest.Item]) -> None:
    """Sort tests by the seconds of their files; a file keeps its own order."""
    seconds = recorded()
    items.sort(key=lambda item: -seconds.get(file_of(item.nodeid), 0))


class Durations:
    """Plugin that adds up the seconds of each file and writes them in the end."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_sessionstart(self) -> None:
        """Refuse to measure on a busy machine."""
        load = os.getloadavg()[0]
        if load > BUSY:
            raise pytest.UsageError(
                f"cannot measure durations: other programs keep {load:.1f} cores busy "
                f"(load average of the last minute; at most {BUSY:g}). Wait until the "
                "machine is idle"
            )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the durations of a run in which every test passed."""
        if exitstatus:
            return
        slow = {
            name: round(took, 2)
            for name, took in self._seconds.items()
            if took >= LEAST
        }
        ordered = dict(sorted(slow.items(), key=lambda pair: (-pair[1], pair[0])))
        FILE.write_text(json.dumps(ordered, indent=0) + "\n", encoding="utf-8")
