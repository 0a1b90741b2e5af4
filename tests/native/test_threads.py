"""Every chunk of a phase is done once, a thread's own share first, and a late thread
keeps no other waiting.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

from foreword.native.compiler import SOURCES

PROGRAM = Path(__file__).with_name("threads.c")


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_idle_thread_takes_from_the_shares_of_others(tmp_path: Path):
    """Of 7 chunks the shares are 0 to 2, 3 and 4, 5 and 6; of 4 they are 0
    and 1, 2, 3.
    """
    made = tmp_path / "program"
    words = ["cc", "-O1", "-I", str(SOURCES), str(PROGRAM), "-o", str(made), "-lm"]
    subprocess.run(words, check=True, timeout=60)
    said = subprocess.run(
        [made], capture_output=True, text=True, check=True, timeout=10
    ).stdout
    alone, nothing, by_turns, still_before, then = (
        line.split() for line in said.splitlines()
    )
    assert alone == ["0", "1", "2", "3", "4", "5", "6"]
    assert by_turns == ["2", "0", "3", "1"]
    assert nothing == still_before == then == []
