"""Compile the C code for every platform, one library for each instruction set, and make
a wheel of each platform. The compiler is clang, from the package ziglang.
"""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from release_run import run

from foreword.native.built import SOURCES, digest, file_name
from foreword.native.compiler import NAMED_ONLY
from foreword.native.cpu import cores

ZIG = "ziglang==0.17.1"
"""The compiler; another version may compile other bytes."""
STEMS = ("foreword", "sampling", "suffix", "bandwidth")
"""C files: each instruction set has a library of every one."""
FLAGS = (
    *("-O3", NAMED_ONLY, "-fno-math-errno", "-shared", "-fPIC", "-pthread"),
    *("-s", "-Wl,--build-id=none"),
)
X86 = {
    "amx": "x86_64_v4+avx512vnni+avx512bf16+amx_tile+amx_int8+amx_bf16",
    "avx512-bf16": "x86_64_v4+avx512vnni+avx512bf16",
    "avx512-vnni": "x86_64_v4+avx512vnni",
    "avx512": "x86_64_v4",
    "avx-vnni": "x86_64_v3+avxvnni",
    "avx2": "x86_64_v3",
    "sse4": "x86_64_v2",
}
ARM = {"dotprod": "generic+v8_2a+dotprod", "neon": "generic"}
"""Instruction set, by its name in csrc/levels.c -> the processor that zig compiles for."""


@dataclass(frozen=True)
class Platform:
    """A system and an architecture that a wheel is for."""

    target: str
    """Name in zig, with the oldest version of the system."""
    instructions: Mapping[str, str]
    """Instruction set -> processor in zig."""

    @property
    def lowest(self) -> str:
        """Processor of the library that chooses, in zig."""
        return "x86_64" if self.target.startswith("x86") else "generic"


PLATFORMS = {
    "manylinux2014_x86_64": Platform("x86_64-linux-gnu.2.17", X86),
    "manylinux2014_aarch64": Platform("aarch64-linux-gnu.2.17", ARM),
    "macosx_11_0_arm64": Platform("aarch64-macos.11.0", {"dotprod": "apple_m1"}),
    "macosx_11_0_x86_64": Platform(
        "x86_64-macos.11.0", {name: X86[name] for name in ("avx2", "sse4")}
    ),
    "win_amd64": Platform(
        "x86_64-windows-gnu",
        {name: X86[name] for name in X86 if name not in ("amx", "avx512")},
    ),
}
"""Tag of a wheel -> what it is for. Only Linux lets a process use AMX, and macOS does not
show AVX512 to one that has not used it. With `avx512` the wheel of Windows would be too
large, and few processors there have it without VNNI.
"""


def this_platform() -> str:
    """Return the tag of the wheel for this machine."""
    names = {"linux": "manylinux2014", "darwin": "macosx_11_0", "win32": "win"}
    return f"{names[sys.platform]}_{platform.machine().lower()}"


def compiler(folder: Path) -> list[str]:
    """Return the command of zig's C compiler, installed in an environment of its own."""
    python = folder / "zig" / "bin" / "python"
    run([sys.executable, "-m", "venv", "zig"], folder)
    run([str(python), "-m", "pip", "install", "--quiet", ZIG], folder)
    return [str(python), "-m", "ziglang", "cc"]


def commands(system: Platform) -> Iterator[list[str]]:
    """Yield the words after the compiler's of each library of a platform."""
    sources = digest()
    yield _words(system, system.lowest, file_name("levels", sources, "any"))
    for name, processor in system.instructions.items():
        for stem in STEMS:
            yield _words(system, processor, file_name(stem, sources, name))


def compile_platform(tag: str, zig: list[str], out: Path) -> None:
    """Compile the libraries of a platform into an empty folder."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    known = {"ZIG_GLOBAL_CACHE_DIR": str(out.parent / "zig-cache")}

    def compile_one(words: list[str]) -> None:
        run([*zig, *words], out, known)

    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(compile_one, commands(PLATFORMS[tag])))
    for other in [*out.glob("*.lib"), *out.glob("*.pdb")]:  # of Windows
        other.unlink()


def _words(system: Platform, processor: str, file: str) -> list[str]:
    """Return the arguments for a library. Its name has no folder: macOS' hold it."""
    source = SOURCES / f"{file.partition('-')[0]}.c"
    target = ["-target", system.target, f"-mcpu={processor}"]
    return [*target, *FLAGS, str(source), "-o", file, "-lm"]


if __name__ == "__main__":  # in deploy/Dockerfile, by a Python that has ziglang
    compile_platform(
        this_platform(), [sys.executable, "-m", "ziglang", "cc"], Path(sys.argv[1])
    )
