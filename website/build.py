"""Build the staged pages into build/site.

A warning, such as a broken link, is an error.
"""

from __future__ import annotations

import subprocess
import sys

from website.staging import ROOT


def build() -> int:
    """Build the site; return the exit status."""
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode
