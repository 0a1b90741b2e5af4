"""Libraries of C files, brought by a wheel, or compiled once per machine and cached on
disk.

A missing compiler is not an error.
"""

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

from foreword.files import atomic_file
from foreword.files import cache as cache_folder
from foreword.native import built
from foreword.native.cpu import cpuinfo
from foreword.notices import notify

SOURCES = built.SOURCES
"""The folder of the C files and their headers."""
NATIVE = (
    "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
)
"""Compiler flag: use all instructions of this processor."""
NAMED_ONLY = "-ffp-contract=off"
"""Compiler flag: only operations that the code fuses by name are fused."""
FLAGS = ("-O3", NATIVE, NAMED_ONLY, "-fno-math-errno", "-shared", "-fPIC", "-pthread")
SECONDS = 120
"""Longest compilation of a file; it takes about ten on an idle core."""
FIX = "set XDG_CACHE_HOME to a folder that only you can write"
SHARED = 0o022
"""Permission bits that let users other than the owner write a file."""


def compiled(source: Path) -> ctypes.CDLL | str:
    """Return the library of `source`, or one sentence with the reason why there is
    none.

    A wheel that brings libraries compiles only if FOREWORD_CFLAGS asks for it.
    """
    more = _words("FOREWORD_CFLAGS")
    if isinstance(more, str):
        return _without(more)
    if built.BUILT.exists() and not more:
        library = built.load(source.stem)
        return _without(library) if isinstance(library, str) else library
    if os.environ.get(built.CHOICE):
        return _without(
            f"the variable {built.CHOICE} chooses among libraries that a wheel brings, "
            "and C files are compiled here; unset it, or set "
            "FOREWORD_CFLAGS=-march=NAME"
        )
    command = compiler()
    if isinstance(command, str):  # warn only if CC named a compiler
        return _without(command) if os.environ.get("CC", "").strip() else command
    if shutil.which(command[0]) is None:
        return _without(
            f"the C compiler {command[0]!r}, which the variable CC names, is not "
            "installed; name another or unset it"
        )
    flags = [*FLAGS, *more]  # the last of two conflicting flags applies
    about = "\n".join([built.digest(), *command, *flags, _processor()])
    key = hashlib.sha256(about.encode()).hexdigest()[:16]
    try:
        return _cached(f"{source.stem}-{key}") or _build(
            [*command, *flags], source, key
        )
    except subprocess.TimeoutExpired:
        return _without(
            f"{shlex.join([*command, *more])} took longer than {SECONDS} s to compile "
            f"{source.name}"
        )
    except subprocess.SubprocessError as error:
        lines = (
            str(getattr(error, "stderr", None) or "").strip() or str(error)
        ).splitlines()
        # the others trace includes
        why = next((line for line in lines if "error" in line), lines[-1])
        return _without(
            f"{shlex.join([*command, *more])} could not compile {source.name}: {why}"
        )
    except OSError as error:
        return _without(f"the compiled {source.name} cannot be loaded: {error}")


def compiler() -> list[str] | str:
    """Return the command of the C compiler as words, or one sentence with the reason
    why there is none.
    """
    command = _words("CC")
    if command:
        return command
    path = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    return (
        [path]
        if path
        else (
            "no C compiler (cc, gcc or clang) is installed; install one for a faster "
            "forward"
        )
    )


def _words(variable: str) -> list[str] | str:
    """Return the words of the variable, split as a shell does; or one sentence with the
    reason why it cannot be.
    """
    value = os.environ.get(variable, "")
    try:
        return shlex.split(value)
    except ValueError as error:
        return (
            f"the variable {variable} holds {value!r}, which cannot be read as a "
            f"command: {error}"
        )


def _cached(name: str) -> ctypes.CDLL | None:
    """Return the cached library of this name, intact and safe to load, or None."""
    try:
        folder = cache_folder()
        if not folder.exists():
            return None
        _trusted(folder)
        for file in folder.glob(f"{name}-*.so"):
            if _safe(file) and file.stem.rpartition("-")[2] == _digest(file):
                return ctypes.CDLL(str(file))
            _warn_once(
                "damaged",
                f"cannot load {file}: it is damaged, or others could write it; it is "
                "compiled again",
            )
            file.unlink()
    except OSError:
        return None  # `_build` tries to cache a new one, and warns why it cannot
    return None


def _build(command: list[str], source: Path, key: str) -> ctypes.CDLL:
    """Compile the library, cache it if possible, and load it.

    Its file name ends with its checksum, so both appear atomically and concurrent
    processes do not interfere.
    """
    notify(f"compiling {source.name} for this machine, once; it may take a minute")
    with TemporaryDirectory(prefix="foreword-", ignore_cleanup_errors=True) as private:
        library = Path(private) / f"{source.stem}.so"
        command = [*command, str(source), "-o", str(library), "-lm"]
        subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
        )
        try:
            folder = cache_folder()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _trusted(folder)
            file = folder / f"{source.stem}-{key}-{_digest(library)}.so"
            with atomic_file(file) as copy:
                shutil.copyfile(library, copy)
                copy.chmod(0o755)
            return ctypes.CDLL(str(file))
        except OSError as error:
            _warn_once(
                "unkept",
                "compiled code is not kept, so every process compiles it again: "
                f"{error}; {FIX}",
            )
            return ctypes.CDLL(str(library))  # a loaded library outlives its file


def _trusted(folder: Path) -> None:
    """Close a folder of this user to others.

    Raise PermissionError if it belongs to another user.
    """
    if (
        os.name == "posix"
        and folder.stat().st_uid == os.geteuid()
        and not _safe(folder)
    ):
        folder.chmod(0o700)
    if not _safe(folder):
        raise PermissionError(
            f"{folder} belongs to another user, or others may write in it"
        )


def _safe(path: Path) -> bool:
    """Return whether this user or root owns the file, and no other may write it."""
    if os.name != "posix":
        return True
    status = path.stat()
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & SHARED


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


# ---- warnings, each once per process rather than once per C file


_warned: set[str] = set()


def _warn_once(kind: str, text: str) -> None:
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def _without(why: str) -> str:
    _warn_once(
        "without", f"C code is off and PyTorch computes instead, more slowly: {why}"
    )
    return why


def _processor() -> str:
    """Return the identity of this processor, for which code is compiled."""
    lines = [line for line in cpuinfo() if line.startswith(("model name", "flags"))][:2]
    return "\n".join([platform.machine(), platform.processor(), *lines])
