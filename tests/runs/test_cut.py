"""A run that is cut leaves no process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import reaper
from waiting import wait_for

CONFTEST = """
import reaper

def pytest_configure():
    reaper.begin()
"""
WAITS = """
import subprocess, sys
from threading import Lock

LOCK = Lock()
CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"

def test_waits_for_its_server():
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE):
        open("started", "w").close()
        LOCK.acquire()
        LOCK.acquire()
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What all processes of the inner run have in their environment."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv(reaper.MARK, f"{os.environ[reaper.MARK]}/{tmp_path.name}")
    return os.environ[reaper.MARK]


def begun(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Start pytest on the files of a folder."""
    (folder / "conftest.py").write_text(CONFTEST)
    words = ["-c", os.devnull, "--rootdir", str(folder), "-p", "xdist", *options]
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


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
    run = begun(tmp_path, "-n", workers)
    wait_for(lambda: len([*reaper.marked(mark)]) > 2 + int(workers), "all", run)
    wait_for((tmp_path / "started").exists, "the test", run)
    run.send_signal(number)
    run.communicate(timeout=60)
    wait_for(lambda: not [*reaper.marked(mark)], "the end of all processes")
