"""What the command line prints: exit code, stdout and stderr, and every help. Decimal
numbers and the repository's folder are replaced.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from foreword.cli.app import app

ROOT = Path(__file__).parents[2]
QUESTION = """'Define the word "gasolene".'"""
FIXED = f"generate {QUESTION} --seed 3 --max-tokens 32 --nodes 4"
COMMANDS = {
    "generate": FIXED,
    "generate, JSON": f"{FIXED} --json --no-stats",
    "generate, stops": f"{FIXED} --stop the --stop ' a' --json --no-stats",
    "generate, a regex": f"{FIXED} --regex '[a-z ]+' --no-stats",
    "generate, another rule": f"{FIXED} --rule traversal --no-stats",
    "generate, no such method": f"generate {QUESTION} --method ngrm",
    "generate, a bad number": f"generate {QUESTION} --temperature -1",
    "generate, no such model": f"generate {QUESTION} --model no/such/folder",
    "methods": "methods",
    "methods, JSON": "methods --json",
    "inspect": "inspect --json",
    "doctor": "doctor --method medusa",
    "serve, a bad port": "serve --port 99999999",
    "train, no such method": "train nothing",
    "bench, no such method": "bench --method nothing",
}
TIMED = re.compile(r"\d+(,\d{3})*\.\d+(e[-+]\d+)?|\d+(?= tok/s)")
SPACES = re.compile(r"[ ─━]{2,}")
"""Padding of tables: its width depends on the width of a replaced number."""


def steady(text: str) -> str:
    """Return a text without measured numbers, folders of this machine, and padding."""
    text = text.replace(str(ROOT), "ROOT")
    return SPACES.sub("  ", TIMED.sub("#", text))


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `foreword` with these arguments to its end."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "foreword", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def run(*arguments: str) -> dict[str, object]:
    """Return the exit code and the streams of `foreword` with these arguments."""
    ended = process(*arguments)
    out, err = steady(ended.stdout), steady(ended.stderr)
    return {"code": ended.returncode, "out": out, "err": err}


def helps(group: Any, *words: str) -> Iterator[tuple[str, object]]:
    """Yield the help of every command of a group, and of their sub-commands."""
    for name, command in sorted(group.commands.items()):
        yield " ".join((*words, name)), run(*words, name, "--help")["out"]
        if hasattr(command, "commands"):
            yield from helps(command, *words, name)


def record() -> dict[str, object]:
    """Return the outcome of all commands."""
    outcome: dict[str, object] = {"help": dict(helps(typer.main.get_group(app)))}
    for name, arguments in COMMANDS.items():
        sys.stderr.write(f"{name}\n")
        outcome[name] = run(*shlex.split(arguments))
    return outcome
