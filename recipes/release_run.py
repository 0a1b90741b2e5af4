"""Commands of a release: one that fails ends it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


class ReleaseError(Exception):
    """A reason not to release, in one line."""


def run(
    command: list[str], folder: Path, variables: Mapping[str, str] | None = None
) -> str:
    """Return what a command prints; raise ReleaseError with its errors if it fails."""
    settings = os.environ | (variables or {})
    settings.pop("PYTHONPATH", None)
    ran = subprocess.run(
        command, cwd=folder, env=settings, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise ReleaseError(
            f"cannot release: {' '.join(command)} failed\n{ran.stdout}{ran.stderr}"
        )
    return ran.stdout
