"""Help answers before anything heavy is imported, for every command, with examples."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import foreword

COMMANDS = ("generate", "chat", "index", "methods", "inspect", "env", "demo", "bench")
HEAVY = ("torch", "transformers", "numpy", "jaxtyping", "safetensors", "matplotlib")


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=lambda c: c[0] if c else "foreword")
def test_help_imports_nothing_heavy_and_shows_examples(command):
    code = (
        "import sys; from foreword.cli import app\n"
        f"try: app({[*command, '--help']!r})\n"
        f"finally: print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(Path(foreword.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0
    assert found.stderr.strip() == "[]"
    assert re.search(r"Examples\s+\$ foreword", found.stdout)


def test_no_command_is_forgotten(shell):
    found = shell("--help")
    assert [name for name in COMMANDS if not re.search(rf"^│ {name}\s", found.stdout, re.MULTILINE)] == []


def test_version(shell):
    found = shell("--version")
    assert (found.returncode, found.stdout) == (0, f"foreword {foreword.__version__}\n")


@pytest.mark.parametrize("words", [["nonsense"], ["generate", "--nonsense"], ["generate", "x", "-k"]])
def test_usage_errors_are_2_and_say_what(shell, words):
    found = shell(*words)
    assert found.returncode == 2
    assert found.stdout == ""
    assert words[-1] in found.stderr
    assert "Traceback" not in found.stderr
