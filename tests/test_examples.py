"""Every example runs as a stranger would run it: in its own process, without arguments, with warnings as errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "quickstart": "+ was guessed and agreed to",
    "drop_in": "enable(): same text True",
    "batch": "the same texts one by one: True",
}
"""What an example must print; those that are not named here need only print something."""


def test_there_are_examples():
    assert {path.stem for path in EXAMPLES} >= set(SAYS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_does_what_it_says(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 40
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    command = [sys.executable, "-W", "error::UserWarning", "-W", "error::RuntimeWarning", str(path)]
    run = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert SAYS.get(path.stem, "\n") in run.stdout
    assert "False" not in run.stdout
