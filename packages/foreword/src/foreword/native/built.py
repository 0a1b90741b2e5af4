"""Compiled libraries of a wheel, one for each C file and instruction set.

The fastest that this processor runs is loaded (csrc/levels.c). `recipes/wheels.py`
compiles them. A checkout has none.
"""

import ctypes
import hashlib
import os
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
"""The folder of the C files and their headers."""
BUILT = Path(__file__).parent / "built"
"""The folder of the libraries, which only wheels of a platform have."""
CHOICE = "FOREWORD_INSTRUCTIONS"
"""Environment variable: the name of the instruction set to use instead."""


def digest() -> str:
    """Return the checksum of all C files and headers."""
    # they include one another
    texts = [file.read_bytes() for file in sorted(SOURCES.rglob("*.[ch]"))]
    return hashlib.sha256(b"\n".join(texts)).hexdigest()[:16]


def file_name(stem: str, sources: str, instructions: str) -> str:
    """Return the file name of a library, by its C file, the checksum of all sources and
    its instruction set.
    """
    return f"{stem}-{sources}-{instructions}.so"


def instructions(library: ctypes.CDLL) -> str | None:
    """Return the instruction set of a library; None if it was compiled here."""
    file = Path(library._name)
    return file.stem.split("-", 2)[2] if file.parent == BUILT else None


def load(stem: str) -> ctypes.CDLL | str:
    """Return the library of a C file for this processor, or one sentence with the
    reason why there is none.
    """
    sources = digest()
    chooser = BUILT / file_name("levels", sources, "any")
    if not chooser.exists():
        return (
            "the C files were changed after their libraries were built; reinstall "
            "foreword, or set FOREWORD_CFLAGS to compile them"
        )
    try:
        names = _runnable(chooser)
        choice = os.environ.get(CHOICE, "") or None
        if choice is not None and choice not in names:
            return (
                f"the variable {CHOICE} is {choice!r}, which this processor does not "
                f"run; it runs {', '.join(names) or 'none'}"
            )
        for name in [choice] if choice else names:
            file = BUILT / file_name(stem, sources, name)
            if file.exists():
                return ctypes.CDLL(str(file))
    except OSError as error:
        return f"the library of {stem}.c cannot be loaded: {error}"
    return (
        f"this wheel has no library of {stem}.c for this processor; set "
        "FOREWORD_CFLAGS=-O3 to compile one"
    )


def _runnable(chooser: Path) -> list[str]:
    """Return the instruction sets that this processor runs, the fastest one first."""
    level = ctypes.CDLL(str(chooser)).foreword_level
    level.restype = ctypes.c_char_p
    names = []
    while name := level(len(names)):
        names.append(name.decode())
    return names
