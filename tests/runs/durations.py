"""Seconds that each file of tests takes, kept in tests/durations.json: files that take longest start first.

`make durations` measures them again, on an idle machine; without other load, two cores finish at nearly the same time.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

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

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        slow = {
            name: round(took, 1)
            for name, took in self._seconds.items()
            if took >= LEAST
        }
        ordered = dict(sorted(slow.items(), key=lambda pair: (-pair[1], pair[0])))
        FILE.write_text(json.dumps(ordered, indent=0) + "\n", encoding="utf-8")
