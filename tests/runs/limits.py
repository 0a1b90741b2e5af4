"""Fails a test that takes too long, with the stacks of all threads, and goes on."""

import faulthandler
import os
import signal
import threading
from collections.abc import Generator
from math import inf
from tempfile import TemporaryFile
from time import CLOCK_BOOTTIME, clock_gettime
from types import FrameType

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

import reaper

LIMIT = 300.0
"""Seconds that a test may take; the longest takes one on an idle machine. What does not
return to Python is ended by `faulthandler_timeout`, together with its process.
"""
AGAIN = 30.0
"""Seconds that the end of such a test may take before it is cut as well."""


class Files(LoadFileScheduling):
    """Scheduler that does not give a test that ended its process to another one."""

    def remove_node(self, node: WorkerController) -> str | None:
        for unit in self.assigned_work[node].values():
            for name, completed in unit.items():
                if not completed:
                    unit[name] = True
                    super().remove_node(node)
                    return name
        return super().remove_node(node)


class Limits:
    """Plugin that cuts tests."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begun = 0.0
        """When the test began: seconds of CLOCK_BOOTTIME."""
        self._since = inf
        """When the processes were started that are killed first, likewise."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Limit a test, its fixtures included."""
        if threading.current_thread() is not threading.main_thread():
            return (yield)
        self._begun, self._since = clock_gettime(CLOCK_BOOTTIME), inf
        signal.signal(signal.SIGALRM, self._cut)
        signal.setitimer(signal.ITIMER_REAL, self._seconds, AGAIN)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Note when the fixtures, which later tests may need, are ready."""
        self._since = clock_gettime(CLOCK_BOOTTIME)
        return (yield)

    def pytest_xdist_make_scheduler(
        self, config: pytest.Config, log: object
    ) -> LoadFileScheduling | None:
        """Return what gives files to the processes of a run, where it is ours."""
        return Files(config, log) if config.option.dist == "loadfile" else None

    def _cut(self, number: int, frame: FrameType | None) -> None:
        """Fail the test. The processes that it has started are killed: it may wait for
        their end.
        """
        with TemporaryFile("w+") as stacks:
            faulthandler.dump_traceback(stacks)
            stacks.seek(0)
            said = stacks.read()
        reaper.end(os.environ[reaper.MARK], self._since)
        self._since = self._begun
        pytest.fail(f"the test took more than {self._seconds:g} s\n{said}")


def install(config: pytest.Config, seconds: float) -> None:
    """Cut tests of this process, and leave no process behind after its end."""
    reaper.begin()
    config.pluginmanager.register(Limits(seconds))
