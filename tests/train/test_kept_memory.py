"""Memory that a training frees is reused by its next tensors."""

import json
import platform
import subprocess
import sys

import pytest

COUNTED = """
import json, resource, torch
from foreword.train.devices import keep_freed

def faults():
    # glibc 2.36 leaves small remnants between aligned blocks, a few times
    for _ in range(20):
        torch.ones(64 * 2**20 // 4)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(64 * 2**20 // 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(json.dumps([faults(), keep_freed(), faults()]))
"""
"""Pages touched anew while tensors of 64 MB come and go, before and after the call."""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only the GNU C library has mallopt"
)
def test_freed_memory_is_reused() -> None:
    # a process of its own: a training in this one has changed the allocator already
    shown = subprocess.run(
        [sys.executable, "-c", COUNTED], check=True, capture_output=True, text=True
    ).stdout
    before, kept, after = json.loads(shown)
    assert before > 1000
    assert kept
    assert after < 100
