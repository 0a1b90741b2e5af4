"""Compiles a C file of ours once for this machine, and keeps the library on disk. No compiler is no error.

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
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

from foreword.disk import cache as cache_folder
from foreword.disk import replacing
from foreword.native.processor import told

NATIVE = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
"""What this machine's processor can do."""
FLAGS = ("-O3", NATIVE, "-fno-math-errno", "-shared", "-fPIC", "-pthread")
FIX = "set XDG_CACHE_HOME to a folder that only you can write"
SHARED = 0o022
"""Permission bits of a file that others than its owner may write."""


def compiled(source: Path) -> ctypes.CDLL | str:
    """The library made from `source`, or one sentence that says why there is none."""
    command, more = compiler(), _words("FOREWORD_CFLAGS")
    if isinstance(more, str):
        return _without(more)
    if isinstance(command, str):  # without a compiler there is nothing to mend, unless one was named
        return _without(command) if os.environ.get("CC", "").strip() else command
    if shutil.which(command[0]) is None:
        return _without(f"there is no C compiler {command[0]!r}, which the variable CC names; name another or unset it")
    flags = [*FLAGS, *more]  # of two that contradict one another the last one counts
    texts = [file.read_text() for file in sorted(source.parent.glob("*.c"))]  # they include one another
    key = hashlib.sha256("\n".join([*texts, *command, *flags, _processor()]).encode()).hexdigest()[:16]
    try:
        return _kept(f"{source.stem}-{key}") or _made([*command, *flags], source, key)
    except subprocess.SubprocessError as error:
        said = (str(getattr(error, "stderr", None) or "").strip() or str(error)).splitlines()
        why = next((line for line in said if "error" in line), said[-1])  # others say where it was included
        return _without(f"{shlex.join([*command, *more])} could not compile {source.name}: {why}")
    except OSError as error:
        return _without(f"the compiled {source.name} cannot be loaded: {error}")


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


def _kept(name: str) -> ctypes.CDLL | None:
    """The library that was kept under this name. None where there is none that is whole and safe to load."""
    try:
        folder = cache_folder()
        if not folder.exists():
            return None
        _trusted(folder)
        for file in folder.glob(f"{name}-*.so"):
            if _safe(file) and file.stem.rpartition("-")[2] == _digest(file):
                return ctypes.CDLL(str(file))
            _say("damaged", f"{file} is damaged, or others could write it; it is compiled again")
            file.unlink()
    except OSError:
        return None  # `_made` tries to keep a new one, and says why that cannot be done
    return None


def _made(command: list[str], source: Path, key: str) -> ctypes.CDLL:
    """Compile the library, keep it if that can be done, and load it.

    Its name ends with its checksum: so both appear in one step, and processes that compile at once do not disturb one
    another.
    """
    with TemporaryDirectory(prefix="foreword-", ignore_cleanup_errors=True) as private:
        made = Path(private) / f"{source.stem}.so"
        command = [*command, str(source), "-o", str(made), "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True, errors="replace", timeout=120)
        try:
            folder = cache_folder()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _trusted(folder)
            file = folder / f"{source.stem}-{key}-{_digest(made)}.so"
            with replacing(file) as copy:
                shutil.copyfile(made, copy)
                copy.chmod(0o755)
            return ctypes.CDLL(str(file))
        except OSError as error:
            _say("unkept", f"compiled code is not kept, so every process compiles it again: {error}; {FIX}")
            return ctypes.CDLL(str(made))  # once it is loaded, its file need not stay


def _trusted(folder: Path) -> None:
    """Close a folder of this user to others; raise PermissionError for one of somebody else."""
    if os.name == "posix" and folder.stat().st_uid == os.geteuid() and not _safe(folder):
        folder.chmod(0o700)
    if not _safe(folder):
        raise PermissionError(f"{folder} belongs to another user, or others may write in it")


def _safe(path: Path) -> bool:
    """It belongs to this user or to root, and nobody else may write it."""
    if os.name != "posix":
        return True
    about = path.stat()
    return about.st_uid in (0, os.geteuid()) and not about.st_mode & SHARED


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


# ---- said once in a process, not once for each file of C


_said: set[str] = set()


def _say(kind: str, text: str) -> None:
    if kind not in _said:
        _said.add(kind)
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def _without(why: str) -> str:
    _say("without", f"C code is off and PyTorch computes instead, only slower: {why}")
    return why


def _processor() -> str:
    """What the code was made for: another processor must not run it."""
    about = [line for line in told() if line.startswith(("model name", "flags"))][:2]
    return "\n".join([platform.machine(), platform.processor(), *about])
