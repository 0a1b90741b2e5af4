"""What a training frees is kept for what it asks for next."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNTED = """
import resource, sys, torch
from foreword.train.devices import keep_freed

kept = keep_freed() if sys.argv[1:] else None
for _ in range(20):  # glibc 2.36 leaves small remnants between aligned blocks, a few times
    torch.ones(64 * 2**20 // 4)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    torch.ones(64 * 2**20 // 4)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*how: str) -> tuple[str, int]:
    """Pages that are touched anew while tensors of 64 MB come and go five times."""
    said = subprocess.run(
        [sys.executable, "-c", COUNTED, *how],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    kept, count = said.split()
    return kept, int(count)


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only the GNU C library can be told"
)
def test_memory_that_was_freed_is_used_again() -> None:
    kept, count = faults("keep")
    assert kept == "True"
    assert count < 100
    assert faults()[1] > 1000  # and without it, it is not
