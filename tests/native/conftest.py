"""Compile C files as a new process would, within this one."""

import ctypes
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from foreword.native import compiler


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
