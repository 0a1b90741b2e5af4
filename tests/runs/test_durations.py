"""Durations are measured on an idle machine, in a run that passed."""

import json
import os

import pytest

import durations


def measured() -> durations.Durations:
    """Return the plugin after two phases of a test."""
    plugin = durations.Durations()
    for seconds in (1.204, 2.1):
        where = ("tests/x/test_y.py", 1, "test_z")
        report = pytest.TestReport(
            "tests/x/test_y.py::test_z", where, {}, "passed", None, "call", (), seconds
        )
        plugin.pytest_runtest_logreport(report)
    return plugin


@pytest.mark.parametrize("load", [0.2, 0.8])
def test_busy_machine_is_refused(monkeypatch, load):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    if load < durations.BUSY:
        assert durations.Durations().pytest_sessionstart() is None
        return
    with pytest.raises(pytest.UsageError, match=r"keep 0\.8 cores busy .* most 0\.5"):
        durations.Durations().pytest_sessionstart()


def test_only_a_run_that_passed_is_written(monkeypatch, tmp_path):
    monkeypatch.setattr(durations, "FILE", tmp_path / "durations.json")
    measured().pytest_sessionfinish(exitstatus=1)
    assert durations.recorded() == {}
    measured().pytest_sessionfinish(exitstatus=0)
    assert json.loads(durations.FILE.read_text()) == {"tests/x/test_y.py": 3.3}
