"""What the command line prints: exit code, stdout and stderr of real processes, and the
help of every command.

Numbers with a decimal point (times, rates) and the folder of the repository are
replaced.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import typer

from foreword.cli.app import app

ROOT = Path(__file__).parents[2]
QUESTION = 'Define the word "gasolene".'
FIXED = ("--seed", "3", "--max-tokens", "32", "--nodes", "4")
COMMANDS: dict[str, tuple[str, ...]] = {
    "generate": ("generate", QUESTION, *FIXED),
    "generate, JSON": ("generate", QUESTION, *FIXED, "--json", "--no-stats"),
    "generate, stops": (
        "generate",
        QUESTION,
        *FIXED,
        "--stop",
        "the",
        "--stop",
        " a",
        "--json",
        "--no-stats",
    ),
    "generate, a regex": (
        "generate",
        QUESTION,
        *FIXED,
        "--regex",
        "[a-z ]+",
        "--no-stats",
    ),
    "generate, another rule": (
        "generate",
        QUESTION,
        *FIXED,
        "--rule",
        "traversal",
        "--no-stats",
    ),
    "generate, no such method": ("generate", QUESTION, "--method", "ngrm"),
    "generate, a bad number": ("generate", QUESTION, "--temperature", "-1"),
    "generate, no such model": ("generate", QUESTION, "--model", "no/such/folder"),
    "methods": ("methods",),
    "methods, JSON": ("methods", "--json"),
    "inspect": ("inspect", "--json"),
    "doctor": ("doctor", "--method", "medusa"),
    "serve, a bad port": ("serve", "--port", "99999999"),
    "train, no such method": ("train", "nothing"),
    "bench, no such method": ("bench", "--method", "nothing"),
}
TIMED = re.compile(r"\d+(,\d{3})*\.\d+(e[-+]\d+)?|\d+(?= tok/s)")
SPACES = re.compile(r"[ ─━]{2,}")
"""Padding of tables: its width depends on the width of a replaced number."""


def steady(text: str) -> str:
    """Return a text without measured numbers, folders of this machine, and padding."""
    text = text.replace(str(ROOT), "ROOT")
    return SPACES.sub("  ", TIMED.sub("#", text))


def run(*arguments: str) -> dict[str, object]:
    """Return the exit code and the streams of `foreword` with these arguments."""
    own = {"HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
    found = subprocess.run(
        [sys.executable, "-m", "foreword", *arguments],
        env=os.environ | own,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    return {
        "code": found.returncode,
        "out": steady(found.stdout),
        "err": steady(found.stderr),
    }


def helps() -> dict[str, object]:
    """Return the help of every command."""
    names = sorted(typer.main.get_group(app).commands)
    return {name: run(name, "--help")["out"] for name in names}


def record() -> dict[str, object]:
    """Return the outcome of all commands."""
    found: dict[str, object] = {"help": helps()}
    for name, arguments in COMMANDS.items():
        sys.stderr.write(f"{name}\n")
        found[name] = run(*arguments)
    return found
