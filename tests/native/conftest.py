"""Compile C files as a new process would, within this one."""

import ctypes
import hashlib
import os
import subprocess
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from foreword.native import built, compiler

UNFIT = (compiler.NATIVE, "-shared", "-fPIC")
FLAGS = [flag for flag in compiler.FLAGS if flag not in UNFIT]


@pytest.fixture(scope="session")
def compile_once(pytestconfig: pytest.Config) -> Callable[..., Path]:
    """Return what compiles a file once, until a C file or the compiler changes."""
    folder = pytestconfig.cache.mkdir("compiled")
    run = partial(subprocess.run, check=True, timeout=120)
    texts = [file.read_text() for file in sorted(Path(__file__).parent.glob("*.[ch]"))]
    same = (compiler._processor(), built.digest(), *texts)

    def digest(*parts: str) -> str:
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def compile_once(source: Path, cc: str, *flags: str) -> Path:
        words = [cc, *FLAGS, *flags, "-I", str(compiler.SOURCES), str(source)]
        version = run([cc, "--version"], capture_output=True, text=True).stdout
        kind = f"{source.stem}-{digest(*words)}-"
        made = folder / (kind + digest(version, *same))
        if not made.exists():
            for older in folder.glob(f"{kind}*"):
                older.unlink(missing_ok=True)
            fresh = folder / str(os.getpid())
            run([*words, "-o", str(fresh), "-lm"])
            fresh.replace(made)
        return made

    return compile_once


class Compiled(NamedTuple):
    """What two files were compiled to, and the warnings meanwhile."""

    libraries: list[bool]
    reason: str | None
    warnings: list[str]


@pytest.fixture
def compile_with(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Compiled]:
    """Return a function that compiles with a new cache folder and other variables, so
    that nothing is loaded before and warnings are given.
    """

    def compile_with(cache: Path | str, **variables: str) -> Compiled:
        known = {"XDG_CACHE_HOME": str(cache), "CC": "cc", "FOREWORD_CFLAGS": "-O0"}
        for name, value in (known | variables).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(compiler, "_warned", set())
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            made = [
                compiler.compiled(compiler.SOURCES / file)
                for file in ("sampling.c", "bandwidth.c")
            ]
        names = ("foreword_gumbel", "foreword_read")
        return Compiled(
            [
                isinstance(one, ctypes.CDLL) and hasattr(one, name)
                for one, name in zip(made, names, strict=True)
            ],
            made[0] if isinstance(made[0], str) else None,
            [str(warning.message) for warning in found],
        )

    return compile_with
