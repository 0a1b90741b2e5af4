"""Compare the C library of this tree with that of another commit, bit by bit.

    python recipes/compared/compare.py bits COMMIT [FLAG ...]
    python recipes/compared/compare.py speed COMMIT [FLAG ...]

`bits` runs tests of kernels and of whole models with both libraries, and compares hashes
of all logits, hidden states and trees that the forward returns. `speed` runs products of
both by turns, and prints the ratio of medians, new to old. Flags are those of the
compiler, such as -march=x86-64-v3 for AVX2. Exits with 1 at a difference of bits.
"""

import ctypes
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
CSRC = "packages/foreword/src/foreword/native/csrc"
LIBRARIES = {
    "foreword": ("foreword.c", "forward.c"),
    "sampling": ("sampling.c",),
    "suffix": ("suffix.c",),
}
"""C files of a library: the first one that a commit has."""
FLAGS = ["-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno"]
FLAGS += ["-shared", "-fPIC", "-pthread"]
TESTS = (
    "tests/native/test_products.py tests/native/test_groups.py tests/model/cpu "
    "tests/model/quantized/test_native_experts.py tests/draft/heads/test_block.py "
    "tests/draft/heads/test_eagle_native.py tests/draft/heads/test_masked_native.py"
).split()
"""Tests that call the forward, the same calls in every run."""
TIMED = (
    "tests/model/cpu/test_offload.py::test_drafts_leave_the_text_unchanged "
    "tests/model/cpu/test_offload.py::test_unreadable_file_is_named "
    "tests/model/cpu/test_int8.py::test_draft_model_is_quantized_unless_it_learns "
    "tests/model/cpu/test_recurrent.py::test_what_it_costs_is_measured_without_reading_a_text_anew "
    "tests/model/cpu/test_experts.py::test_late_thread_does_not_wait_for_a_later_layer"
).split()
"""Tests left out: how often they call the forward depends on time, or they call it in
another process.
"""
TURNS, SECONDS = 40, 0.005
"""Measurements of each product and library, and seconds of processor time of each."""


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def build(csrc: Path, folder: Path, flags: list[str]) -> Path:
    """Compile the libraries of a folder of C files; return `folder`."""
    folder.mkdir()
    for name, sources in LIBRARIES.items():
        source = next(csrc / one for one in sources if (csrc / one).exists())
        made = ["-o", str(folder / f"{name}.so"), "-lm"]
        subprocess.run(["cc", *FLAGS, *flags, str(source), *made], check=True)
    return folder


def extracted(commit: str, folder: Path) -> Path:
    """Return the C files of a commit."""
    words = ["git", "-C", str(ROOT), "archive", commit, CSRC]
    done = subprocess.run(words, check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder / CSRC


def hashes(libraries: Path, tests: list[str]) -> dict[str, list[str]]:
    """Return what tests compute with the libraries, by test."""
    record = libraries / "record.json"
    variables = {
        "FOREWORD_COMPARED": str(libraries),
        "FOREWORD_RECORD": str(record),
        "PYTHONPATH": str(ROOT / "recipes"),
    }
    words = [sys.executable, "-m", "pytest", "-q", "-p", "compared.recorder"]
    words += [*tests, *(f"--deselect={test}" for test in TIMED)]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | variables, check=False)
    say(f"pytest with {libraries.name}: exit code {done.returncode}")
    return json.loads(record.read_text())


def compare_bits(old: Path, new: Path) -> int:
    """Print tests whose hashes differ; return the exit code.

    Tests that differ are run again with the old library. Where it differs from itself,
    the calls depend on time, and the test says nothing.
    """
    before, after = hashes(old, TESTS), hashes(new, TESTS)
    calls = sum(map(len, before.values()))
    names = sorted({*before, *after})
    differing = [test for test in names if before.get(test) != after.get(test)]
    say(f"{calls} calls in {len(before)} tests; {len(differing)} tests differ")
    if not differing:
        return 0 if calls else 1
    again = [hashes(library, differing) for library in (old, new)]
    certain = [
        test
        for test in differing
        if again[0].get(test) == before.get(test) != again[1].get(test)
    ]
    for test in differing:
        say(f"  {test}: {'differs' if test in certain else 'differs from itself'}")
    return 1 if certain else 0


def matrices(library: ctypes.CDLL, outputs: int, depth: int) -> dict[str, tuple]:
    """Return the coding and the bytes of matrices of each form, by name."""
    import torch

    from foreword.model.executors.native.grouped import packed
    from foreword.model.quantized.coded import Coded, Scales
    from foreword.native import forward

    generator = torch.Generator().manual_seed(1)
    plain = torch.randn(outputs, depth, generator=generator).bfloat16()
    whole = torch.empty(outputs, depth, dtype=torch.bfloat16)
    sizes = [ctypes.c_int64(outputs), ctypes.c_int64(depth)]
    address = ctypes.c_void_p
    library.foreword_pack(address(plain.data_ptr()), address(whole.data_ptr()), *sizes)
    forms = {"bfloat16": (forward.WHOLE, whole)}
    for name, coding in (("int8", forward.BYTES), ("int4", forward.GROUPS)):
        size = library.foreword_coded_bytes(*sizes, coding)
        held = torch.zeros(size + 65536, dtype=torch.uint8)
        places = address(whole.data_ptr()), address(held.data_ptr())
        library.foreword_quantize(*places, *sizes, coding)
        forms[name] = coding, held
    scale = torch.rand(outputs, depth // 32, generator=generator).half().float()
    for name, low, count in (("Q4_0", -8, 16), ("Q5_0", -16, 32), ("Q8_0", -128, 256)):
        codes = torch.randint(count, (outputs, depth), generator=generator)
        levels = torch.arange(low, low + count).to(torch.int8)
        matrix = Coded(codes.to(torch.uint8), levels, Scales(scale), None, 32)
        forms[name] = forward.GROUPS, packed(matrix)
    return forms


def compare_speed(old: Path, new: Path) -> int:
    """Print the ratio of times of products: by coding, and by rows."""
    import torch

    from foreword.native import forward, workspace

    outputs, depth = 4096, 2048
    libraries = [ctypes.CDLL(str(folder / "foreword.so")) for folder in (old, new)]
    inputs = torch.randn(32, depth, generator=torch.Generator().manual_seed(1))
    for library in libraries:
        library.foreword_coded_bytes.restype = ctypes.c_int64
        library.foreword_use_amx(1)
    names = os.environ.get("ONLY", "").split()
    for name, (coding, held) in matrices(libraries[1], outputs, depth).items():
        if names and name not in names:
            continue
        head = forward.Model(
            hidden=depth, vocab=outputs, head=held.data_ptr(), coding=coding
        )
        scratch = workspace.Workspace(head)
        for rows in (1, 2, 4, 6, 8, 12, 16, 32):
            times: list[list[float]] = [[], []]
            for _ in range(TURNS):
                for library, found in zip(libraries, times, strict=True):
                    began, runs = time.thread_time(), 0
                    while time.thread_time() - began < SECONDS:
                        workspace.multiplied(library, head, scratch, inputs[:rows], 1)
                        runs += 1
                    found.append((time.thread_time() - began) / runs)
            was, now = map(median, times)
            say(f"{name} {rows} rows: {now * 1e3:.3f} ms, {now / was:.3f} of before")
    return 0


def main(action: str, commit: str, *flags: str) -> int:
    """Build both libraries, and compare them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        old = build(extracted(commit, folder / "c"), folder / "old", [*flags])
        new = build(ROOT / CSRC, folder / "new", [*flags])
        return {"bits": compare_bits, "speed": compare_speed}[action](old, new)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
