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

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC", "-pthread")


def compiled(source: Path) -> ctypes.CDLL | str:
    """The library made from `source`, or one sentence that says why there is none."""
    command = compiler()
    if isinstance(command, str):
        return command
    words = shlex.join(command)
    texts = [file.read_text() for file in sorted(source.parent.glob("*.c"))]  # they include one another
    key = hashlib.sha256("\n".join([*texts, words, *FLAGS, _processor()]).encode()).hexdigest()[:16]
    try:
        library = _cache() / f"{source.stem}-{key}.so"
        if not library.exists():
            _compile(command, source, library)
        return ctypes.CDLL(str(library))
    except subprocess.SubprocessError as error:
        said = str(getattr(error, "stderr", None) or "").strip() or str(error)
        return f"{words} could not compile {source.name}: {said.splitlines()[0]}"
    except OSError as error:
        if shutil.which(command[0]) is None:
            return f"there is no C compiler {command[0]!r}, which the variable CC names; name another or unset it"
        return f"the compiled {source.name} cannot be kept or loaded: {error}"


def compiler() -> list[str] | str:
    """The words that start the C compiler, or one sentence that says why there is none."""
    named = os.environ.get("CC", "")
    try:
        command = shlex.split(named)
    except ValueError as error:
        return f"the variable CC holds {named!r}, which cannot be read as a command: {error}"
    if command:
        return command
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return [found] if found else "there is no C compiler (cc, gcc or clang); install one for a faster forward"


def _compile(command: list[str], source: Path, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        subprocess.run(
            [*command, *FLAGS, str(source), "-o", str(made), "-lm"],
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
