"""Threads of several NUMA nodes, made up: divisions, meetings, first writes."""

import os
import shutil
import subprocess
import sys
from ctypes import c_int32
from pathlib import Path

import pytest
import torch

from command import printed
from foreword.model.executors.native import matrices
from foreword.native import cgroups, forward, nodes
from foreword.native.compiler import NATIVE, SOURCES
from foreword.native.workspace import Workspace, multiplied
from grids import NEEDS_C

HERE = Path(__file__).parent
ANY = 256
"""Threads of the node that a machine with one has."""


def divide(*sizes: int) -> None:
    sizes_in_c = (c_int32 * len(sizes))(*sizes)
    forward.needed().foreword_nodes(len(sizes), sizes_in_c, 0, None)


@pytest.fixture
def division(monkeypatch):
    """Divide the threads into groups of so many, as if each was a node."""
    monkeypatch.setattr(nodes, "divide", lambda: 2)
    yield lambda size: divide(*[size] * (8 // size + 1))
    divide(ANY)


@pytest.mark.parametrize(
    ("lists", "cpus", "threads", "expected"),
    [
        (["0-3"], range(4), 4, [4]),
        (["0-1,4-5", "2-3,6-7"], range(8), 4, [2, 2]),
        (["0-11", "12-15"], range(16), 8, [6, 2]),
        (["0-3", "4-7", ""], range(6), 6, [4, 2]),
        (["0-3", "4-7"], range(8), 1, [0, 1]),
    ],
)
def test_threads_are_divided_by_processors(
    tmp_path, monkeypatch, lists, cpus, threads, expected
):
    for number, text in enumerate(lists):
        (tmp_path / f"node{number}").mkdir()
        (tmp_path / f"node{number}" / "cpulist").write_text(text + "\n")
    monkeypatch.setattr(cgroups, "NODES", tmp_path)
    processors = nodes.by_node({*cpus})
    assert nodes.shares([len(ids) for ids in processors.values()], threads) == expected


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, capture_output=True, text=True, timeout=120, check=False
    )


def compiled(folder: Path, name: str, *flags: str) -> Path:
    program = folder / name
    words = ["cc", *flags, "-pthread", "-I", str(SOURCES)]
    words += [str(HERE / f"{name}.c"), "-o", str(program), "-lm"]
    done = run(words)
    if flags and "tsan" in done.stderr:
        pytest.skip("the compiler has no thread sanitizer")
    assert done.returncode == 0, done.stderr
    return program


def output(program: Path, *arguments: int) -> str:
    words = [str(program), *map(str, arguments)]
    done = run(words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize(
    ("flags", "phases"), [("-O2", 9001), ("-fsanitize=thread", 901)]
)
def test_phases_follow_one_another_in_groups(tmp_path, flags, phases):
    program = compiled(tmp_path, "meetings", flags)
    expected = output(program, 1, 1, phases)
    for threads in range(2, 9):
        for size in (1, 2, 3, 8):
            assert output(program, threads, size, phases) == expected, (threads, size)


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_pages_are_written_by_the_thread_that_reads_them(tmp_path):
    program = compiled(tmp_path, "touched", "-O0", NATIVE)
    for threads in (2, 3, 16, 192):
        wrong, of, pages = output(program, threads).split()
        assert (wrong, of) == ("0", "of"), threads
        assert int(pages) > 1000


@NEEDS_C
@pytest.mark.parametrize("size", [1, 2, 3])
def test_packed_weights_and_products_are_the_same_on_every_node(division, size):
    random = torch.Generator().manual_seed(0)
    weight = torch.randn(1000, 512, generator=random).bfloat16()
    rows = torch.randn(3, 512, generator=random)

    def product(coding: int, threads: int) -> tuple[torch.Tensor, torch.Tensor]:
        memory = matrices.Matrices()
        lm_head = forward.Model(hidden=512, vocab=1000, head=memory.pack(weight))
        if coding != forward.WHOLE:
            memory.quantize([lm_head], coding)
        scratch = Workspace(lm_head)
        library = forward.needed()
        found = multiplied(library, lm_head, scratch, rows, threads)
        return memory.held[-1].view(torch.uint8), found

    for coding in (forward.WHOLE, forward.BYTES, forward.GROUPS):
        divide(ANY)
        packed, expected = product(coding, 1)
        division(size)
        for threads in range(2, 9):
            found = product(coding, threads)
            assert torch.equal(found[0], packed)
            assert torch.equal(found[1], expected)


@NEEDS_C
@pytest.mark.parametrize("threads", [2, 3, 8])
def test_memory_is_written_once_a_page(division, threads):
    division(2)
    memory = torch.ones(1 << 20, dtype=torch.uint8)
    forward.needed().foreword_touch(memory.data_ptr(), len(memory), 4096, threads)
    start = -memory.data_ptr() % 4096
    assert not memory[start::4096].any()
    assert len(memory) - int(memory.sum()) == len(memory[start::4096])


PROGRAM = """
import os, sys
from ctypes import c_int32
from pathlib import Path
from foreword.native import forward
first, last = sorted(os.sched_getaffinity(0))[:2]
node = [-1] * (last + 1)
node[first], node[last] = 0, 1
library = forward.needed()
library.foreword_nodes(2, (c_int32 * 2)(1, 1), len(node), (c_int32 * len(node))(*node))
before = {*os.listdir("/proc/self/task")}
library.foreword_touch(None, 0, 16, 2)
(helper,) = {*os.listdir("/proc/self/task")} - before
print(os.sched_getaffinity(int(helper)) == {last}, len(os.sched_getaffinity(0)) > 1)
"""


@NEEDS_C
@pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2,
    reason="there is one processor, or none can be chosen",
)
def test_helpers_stay_on_their_node_and_the_caller_runs_anywhere():
    assert printed("-c", PROGRAM).split() == ["True", "True"]
