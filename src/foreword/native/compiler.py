"""Compiles a C file of ours once for this machine, and remembers the result on disk. No compiler is no error.

Knows compilers; knows nothing about what the file does.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC", "-pthread")


def compiled(source: Path) -> ctypes.CDLL | str:
    """The library made from `source`, or one sentence that says why there is none."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        return "there is no C compiler (cc, gcc or clang); install one for a faster forward"
    texts = [file.read_text() for file in sorted(source.parent.glob("*.c"))]  # they include one another
    key = hashlib.sha256("\n".join([*texts, compiler, *FLAGS, _processor()]).encode()).hexdigest()[:16]
    try:
        library = _cache() / f"{source.stem}-{key}.so"
        if not library.exists():
            _compile(compiler, source, library)
        return ctypes.CDLL(str(library))
    except subprocess.SubprocessError as error:
        said = getattr(error, "stderr", None) or str(error)
        return f"{compiler} could not compile {source.name}: {str(said).strip().splitlines()[0]}"
    except OSError as error:
        return f"the compiled {source.name} cannot be kept or loaded: {error}"


def _compile(compiler: str, source: Path, library: Path) -> None:
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        command = [compiler, *FLAGS, str(source), "-o", str(made), "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        made.replace(library)  # in one step, so that another process never loads half a file


def _cache() -> Path:
    """Where compiled files are kept: $XDG_CACHE_HOME/foreword, or ~/.cache/foreword."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "foreword"


def _processor() -> str:
    """What the code was made for: another processor must not run it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    told = [line for line in lines if line.startswith(("model name", "flags"))][:2]
    return "\n".join([platform.machine(), platform.processor(), *told])
