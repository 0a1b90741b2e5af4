"""A test that hangs costs one test, and a run that is cut leaves no process."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import reaper
from waiting import wait_for

CONFTEST = """
import limits

def pytest_configure(config):
    limits.install(config, {limit})
"""
WAITS = """
import subprocess, sys
from threading import Lock

LOCK = Lock()
CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"

def test_before(): pass

def test_waits_for_its_server():
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE):
        open("started", "w").close()
        LOCK.acquire()
        LOCK.acquire()

def test_after(): pass
"""
STUCK = """
from ctypes import PyDLL, create_string_buffer

def test_before(): pass

def test_never_returns_to_python():
    lock, program = create_string_buffer(256), PyDLL(None)
    program.pthread_mutex_lock(lock)
    program.pthread_mutex_lock(lock)

def test_after(): pass
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What all processes of the inner run have in their environment."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv(reaper.MARK, f"{os.environ[reaper.MARK]}/{tmp_path.name}")
    return os.environ[reaper.MARK]


def begun(folder: Path, *options: str, limit: float) -> subprocess.Popen[str]:
    """Start pytest on the files of a folder."""
    (folder / "conftest.py").write_text(CONFTEST.format(limit=limit))
    words = ["-c", os.devnull, "--rootdir", str(folder), "-p", "xdist", *options]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_each_hanging_test_costs_itself(tmp_path, mark):
    (tmp_path / "test_waits.py").write_text(WAITS)
    (tmp_path / "test_stuck.py").write_text(STUCK)
    options = ["-n", "2", "--dist", "loadfile", "--max-worker-restart", "2"]
    options += ["-o", "faulthandler_timeout=8", "-o", "faulthandler_exit_on_timeout=1"]
    run = begun(tmp_path, *options, limit=3)
    said, _ = run.communicate(timeout=100)
    assert run.returncode == 1, said
    assert re.search(r"=+ 2 failed, 4 passed in ", said), said
    assert "Failed: the test took more than 3 s" in said
    assert re.search(r'File ".*test_waits.py", line \d+ in test_waits_for', said)
    assert re.search(r"crashed while running .*test_never_returns", said)
    wait_for(lambda: not [*reaper.marked(mark)], "the end of all processes")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "workers"),
    [
        (signal.SIGKILL, "0"),
        (signal.SIGKILL, "2"),
        (signal.SIGTERM, "2"),
        (signal.SIGINT, "2"),
    ],
)
def test_run_that_is_cut_leaves_no_process(tmp_path, mark, number, workers):
    (tmp_path / "test_waits.py").write_text(WAITS)
    run = begun(tmp_path, "-n", workers, limit=1000)
    wait_for(lambda: len([*reaper.marked(mark)]) > 2 + int(workers), "all", run)
    wait_for((tmp_path / "started").exists, "the test", run)
    run.send_signal(number)
    run.communicate(timeout=60)
    wait_for(lambda: not [*reaper.marked(mark)], "the end of all processes")
