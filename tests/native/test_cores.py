"""The quotas of containers limit the cores that are counted, and torch's threads."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from command import printed
from foreword.native.compiler import SOURCES
from foreword.native.cpu import cores
from foreword_lab.bench.roofline import timing
from foreword_lab.bench.roofline.timing import UNIT, _library

LIMIT = """
from pathlib import Path
from foreword.native import cgroups, openmp
import torch
openmp.cores = lambda: 1
openmp.limit_threads()
print(torch.get_num_threads())
"""


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {}, 64),
        ("0::/\n", {"cpu.max": "max 100000"}, 64),
        ("0::/\n", {"cpu.max": "400000 100000"}, 4),
        ("0::/\n", {"cpu.max": "250000 100000"}, 2),
        ("0::/\n", {"cpu.max": "10000 100000"}, 1),
        ("0::/\n", {"cpu.max": "9900000 100000"}, 64),
        # the pod's limit stands above the container's
        (
            "0::/pod/box\n",
            {"pod/cpu.max": "300000 100000", "pod/box/cpu.max": "max 1"},
            3,
        ),
        (
            "4:memory:/a\n3:cpu,cpuacct:/a/b\n",
            {
                "cpu,cpuacct/a/cpu.cfs_quota_us": "500000",
                "cpu,cpuacct/a/cpu.cfs_period_us": "100000",
                "cpu,cpuacct/a/b/cpu.cfs_quota_us": "-1",
                "cpu,cpuacct/a/b/cpu.cfs_period_us": "100000",
            },
            5,
        ),
        # a container of cgroup 1 sees its own group as the outermost
        (
            "3:cpu:/docker/1\n",
            {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"},
            2,
        ),
    ],
)
def test_quota_of_a_container(tmp_path, monkeypatch, own, files, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(64)})
    (tmp_path / "own").write_text(own)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert cores(tmp_path, tmp_path / "own") == expected


@pytest.mark.parametrize(
    ("chosen", "threads"), [({}, "1"), ({"OMP_NUM_THREADS": "2"}, "2")]
)
def test_torch_takes_no_more_threads_than_cores(monkeypatch, chosen, threads):
    """Unless the user has chosen their number."""
    for name in [name for name in os.environ if "_NUM_THREADS" in name]:
        monkeypatch.delenv(name)
    assert printed("-c", LIMIT, **chosen).strip() == threads


@pytest.mark.skipif(_library() is None, reason="no C compiler")
@pytest.mark.parametrize("units", [1, 2, 7])
def test_every_word_is_read_once(units):
    words = torch.randint(2**62, (units * UNIT // 8,))
    assert timing.read(words) == int(
        words.numpy().astype(np.uint64).sum(dtype=np.uint64)
    )


def test_without_a_compiler_torch_reads(monkeypatch):
    monkeypatch.setattr(timing, "_library", lambda: None)
    assert timing.read(torch.ones(UNIT)) == UNIT


PROGRAM = Path(__file__).with_name("threads.c")


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_idle_thread_takes_from_the_shares_of_others(tmp_path):
    """The shares of 7 chunks are 0 to 2, 3 and 4, 5 and 6; of 4: 0 and 1, 2, 3."""
    made = tmp_path / "program"
    words = ["cc", "-O1", "-I", str(SOURCES), str(PROGRAM), "-o", str(made), "-lm"]
    subprocess.run(words, check=True, timeout=60)
    said = subprocess.run(
        [made], capture_output=True, text=True, check=True, timeout=10
    ).stdout
    alone, nothing, by_turns, still_before, then = (
        line.split() for line in said.splitlines()
    )
    assert alone == ["0", "1", "2", "3", "4", "5", "6"]
    assert by_turns == ["2", "0", "3", "1"]
    assert nothing == still_before == then == []
