"""Each C file compiles alone, for every instruction set, and can be read at once."""

import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from foreword.native.compiler import NATIVE, SOURCES
from grids import slow_case

FILES = sorted(path for path in SOURCES.rglob("*.[ch]"))
MOST_LINES, MOST_WIDTH = 300, 100
"""Lines of a C file; characters of a line."""
WARNINGS = ("-Wall", "-Wextra", "-Werror")
SETS = (
    ["x86-64-v3", "x86-64", "x86-64-v4", "sapphirerapids"]
    if platform.machine() == "x86_64"
    else []
)
"""AVX2, SSE, AVX512 without bfloat16, and matrix registers."""
FLAGS = [NATIVE, *(slow_case(f"-march={name}") for name in SETS)]


def refused(source: Path, flag: str) -> str:
    """What the compiler says of a file, alone; nothing if it compiles."""
    words = ["cc", "-fsyntax-only", flag, *WARNINGS, str(source)]
    done = subprocess.run(
        words, check=False, capture_output=True, text=True, timeout=120
    )
    return done.stderr if done.returncode else ""


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("flag", FLAGS)
def test_every_file_compiles_alone(flag):
    sources = [path for path in FILES if path.suffix == ".c"]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda path: (path.name, refused(path, flag)), sources)
    assert {name: error for name, error in found if error} == {}


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_file_without_its_headers_is_refused(tmp_path):
    text = (SOURCES / "layers/norms.c").read_text().replace('#include "norms.h"', "")
    (tmp_path / "norms.c").write_text(text)
    assert "error" in refused(tmp_path / "norms.c", NATIVE)


def test_headers_are_guarded():
    for path in FILES:
        lines = [line for line in path.read_text().splitlines() if line.startswith("#")]
        if path.suffix == ".h":
            assert lines[0].startswith("#ifndef FOREWORD_"), path
            assert lines[1] == lines[0].replace("#ifndef", "#define"), path


def test_only_the_top_file_includes_c_files():
    inside = [path.name for path in FILES if '.c"' in path.read_text()]
    assert inside == ["foreword.c"]


def test_files_and_lines_are_short():
    long = {}
    for path in FILES:
        lines = path.read_text().splitlines()
        if len(lines) > MOST_LINES or max(map(len, lines)) > MOST_WIDTH:
            long[path.name] = len(lines), max(map(len, lines))
    assert long == {}


def test_top_file_includes_every_file_of_the_forward():
    text = (SOURCES / "foreword.c").read_text()
    apart = {"foreword.c", "bandwidth.c", "levels.c", "sampling.c", "suffix.c"}
    for path in FILES:
        name = path.relative_to(SOURCES).as_posix()
        if path.suffix == ".c":
            assert (f'"{name}"' in text) is (name not in apart), name
