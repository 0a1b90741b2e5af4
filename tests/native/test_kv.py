"""Attention over keys and values in 8 bits is that over bfloat16, to the bit."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from foreword.native import compiler
from foreword.native.compiler import SOURCES
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
def program(request, tmp_path_factory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    made = tmp_path_factory.mktemp("kv") / "program"
    others = (compiler.NATIVE, "-shared", "-fPIC")
    flags = [flag for flag in compiler.FLAGS if flag not in others]
    words = ["cc", *flags, request.param, "-I", str(SOURCES), str(PROGRAM)]
    words += ["-o", str(made), "-lm"]
    subprocess.run(words, check=True, timeout=120)
    return made


@pytest.mark.sample(2)
@pytest.mark.parametrize("registers", [0, 1])
def test_attention_is_that_over_rounded_rows(program, registers):
    found = {}
    for shape in SHAPES:
        words = [program, *shape.split(), str(registers)]
        done = subprocess.run(
            words, capture_output=True, text=True, check=True, timeout=60
        )
        found[shape] = done.stdout
    assert found == dict.fromkeys(SHAPES, "equal\n")
