"""Runs the programs of other projects, each in an empty home."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / ".venv-clients" / "bin"
AGENTS = ROOT / ".venv-clients" / "agents" / "node_modules" / ".bin"
LONGEST = 300
"""Seconds. A program that takes longer hangs."""


def ran(
    command: list[str],
    folder: Path,
    home: Path,
    environment: dict[str, str],
    given: str = "",
    longest: float = LONGEST,
) -> str:
    """Return what a program prints, run in a folder with this home; it must succeed."""
    kept = {
        name: os.environ[name]
        for name in ("PATH", "LANG", "TMPDIR")
        if name in os.environ
    }
    done = subprocess.run(
        command,
        input=given,
        cwd=folder,
        env={**kept, "HOME": str(home), "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=longest,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
