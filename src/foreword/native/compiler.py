"""Compiles a C file of ours once for this machine, and remembers the result on disk. No compiler is no error.

Knows compilers; knows nothing about what the file does.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from foreword.native.processor import told

NATIVE = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
"""What this machine's processor can do."""
FLAGS = ("-O3", NATIVE, "-fno-math-errno", "-shared", "-fPIC", "-pthread")


def compiled(source: Path) -> ctypes.CDLL | str:
    """The library made from `source`, or one sentence that says why there is none."""
    command, more = compiler(), _words("FOREWORD_CFLAGS")
    if isinstance(command, str):
        return command
    if isinstance(more, str):
        return more
    flags = [*FLAGS, *more]  # of two that contradict one another the last one counts
    texts = [file.read_text() for file in sorted(source.parent.glob("*.c"))]  # they include one another
    key = hashlib.sha256("\n".join([*texts, *command, *flags, _processor()]).encode()).hexdigest()[:16]
    try:
        library = _cache() / f"{source.stem}-{key}.so"
        if not library.exists():
            _compile([*command, *flags], source, library)
        return ctypes.CDLL(str(library))
    except subprocess.SubprocessError as error:
        said = (str(getattr(error, "stderr", None) or "").strip() or str(error)).splitlines()
        why = next((line for line in said if "error" in line), said[0])  # others say where it was included
        return f"{shlex.join([*command, *more])} could not compile {source.name}: {why}"
    except OSError as error:
        if shutil.which(command[0]) is None:
            return f"there is no C compiler {command[0]!r}, which the variable CC names; name another or unset it"
        return f"the compiled {source.name} cannot be kept or loaded: {error}"


def compiler() -> list[str] | str:
    """The words that start the C compiler, or one sentence that says why there is none."""
    command = _words("CC")
    if command:
        return command
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return [found] if found else "there is no C compiler (cc, gcc or clang); install one for a faster forward"


def _words(variable: str) -> list[str] | str:
    """What the variable holds, taken apart as a shell does; or one sentence that says why that cannot be done."""
    named = os.environ.get(variable, "")
    try:
        return shlex.split(named)
    except ValueError as error:
        return f"the variable {variable} holds {named!r}, which cannot be read as a command: {error}"


def _compile(command: list[str], source: Path, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        subprocess.run(
            [*command, str(source), "-o", str(made), "-lm"],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        made.replace(library)  # in one step, so that another process never loads half a file


def _cache() -> Path:
    """Where compiled files are kept: $XDG_CACHE_HOME/foreword, or ~/.cache/foreword."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foreword"


def _processor() -> str:
    """What the code was made for: another processor must not run it."""
    about = [line for line in told() if line.startswith(("model name", "flags"))][:2]
    return "\n".join([platform.machine(), platform.processor(), *about])
