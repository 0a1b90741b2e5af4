"""Help answers before anything heavy is imported, for every command, with examples."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import foreword
from foreword.cli import app

HEAVY = (
    "torch",
    "transformers",
    "numpy",
    "jaxtyping",
    "safetensors",
    "matplotlib",
    "accelerate",
    "optuna",
)


def commands(command: Any, *words: str) -> Iterator[tuple[str, ...]]:
    """The words of a command and of all below it."""
    yield words
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, *words, name)


ALL = [*commands(typer.main.get_command(app))]


@pytest.mark.parametrize(
    "command", ALL, ids=lambda words: " ".join(("foreword", *words))
)
def test_help_imports_nothing_heavy_and_shows_examples(command):
    code = (
        "import sys; from foreword.cli import app\n"
        f"try: app({[*command, '--help']!r})\n"
        f"finally: print([name for name in {HEAVY!r} if name in sys.modules], "
        "file=sys.stderr)"
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
    listed = re.findall(r"^│ (\w+)\s", found.stdout, re.MULTILINE)
    assert {words[0] for words in ALL if words} <= set(listed)
    assert {("generate",), ("chat",), ("train", "lm"), ("tune", "layers")} <= set(ALL)


def test_version(shell):
    found = shell("--version")
    assert (found.returncode, found.stdout) == (0, f"foreword {foreword.__version__}\n")


@pytest.mark.parametrize(
    "words", [["nonsense"], ["generate", "--nonsense"], ["generate", "x", "-k"]]
)
def test_usage_errors_are_2_and_say_what(shell, words):
    found = shell(*words)
    assert found.returncode == 2
    assert found.stdout == ""
    assert words[-1] in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    "words",
    [("generate", "caf\udce9"), ("generate", "x", "--stop", "\ud800"), ("\udcff",)],
)
def test_an_argument_that_is_no_text_is_refused(here, words):
    found = here(*words)
    assert (found.returncode, found.stdout) == (2, "")
    assert f"cannot read argument {len(words)}: it is not UTF-8 text" in found.stderr


def test_bytes_that_are_no_text_are_refused(shell):
    found = shell("generate", os.fsdecode(b"caf\xe9"))
    assert (found.returncode, found.stdout) == (2, "")
    assert "cannot read argument 2: it is not UTF-8 text: caf\\udce9" in found.stderr
