"""Attention over keys and values in 8 bits is that over bfloat16, to the bit."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from foreword.native import compiler
from grids import slow_case

PROGRAM = Path(__file__).with_name("kv.c")
X86 = ["-march=x86-64"] if platform.machine() == "x86_64" else []
KINDS = [compiler.NATIVE, *(slow_case(x86) for x86 in X86)]
SHAPES = [
    "4 4 64 0",
    "8 2 32 0",
    "9 3 64 0",
    "16 1 128 0",
    "6 2 48 0",
    "4 2 16 20",
    "8 2 64 100",
    "4 2 256 0",
]
"""Heads, kv heads, numbers of a head, window."""


@pytest.fixture(scope="module", params=KINDS)
def program(request, compile_once) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    return compile_once(PROGRAM, "cc", request.param)


@pytest.mark.sample(2)
@pytest.mark.parametrize("registers", [0, 1])
def test_attention_is_that_over_rounded_rows(program, registers):
    for shape in SHAPES:
        words = [program, *shape.split(), str(registers)]
        found = subprocess.check_output(words, text=True, timeout=60)
        assert found == "equal\n", shape
