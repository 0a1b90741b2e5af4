"""Two processes that train together, through accelerate, learn what one learns."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import foreword
from command import printed
from foreword.errors import InvalidRequest
from foreword_train import devices
from foreword_train.devices import ManyDevices
from foreword_train.trainer import TrainingConfig
from pair import Copying, trainer
from waiting import free_port

TOGETHER = """
import sys
from pathlib import Path
from torch import nn
from foreword_train.devices import ManyDevices
from foreword_train.trainer import TrainingConfig
from pair import Copying, trainer

task = Copying()
task.module[1] = nn.Identity()
recipe = TrainingConfig(steps=6, batch=1, accumulate=2, warmup=2, learning_rate=0.02, evaluate=3, save=3)
trainer(Path(sys.argv[1]), recipe, task=task, devices=ManyDevices(cpu=True)).run()
"""


@pytest.mark.slow
def test_two_processes_learn_as_one(tmp_path):
    source, tests = Path(foreword.__file__).parents[1], Path(__file__).parents[1]
    shared = {
        "PYTHONPATH": os.pathsep.join(
            map(str, (source, tests, tests / "support", tests / "tiny"))
        ),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    command = [sys.executable, "-c", TOGETHER, str(tmp_path / "two")]
    ranks = [
        subprocess.Popen(
            command,
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=120) for process in ranks] == [0, 0]
    task = Copying()
    task.module[1] = torch.nn.Identity()
    recipe = TrainingConfig(
        steps=6, batch=1, accumulate=4, warmup=2, learning_rate=0.02, evaluate=3, save=3
    )
    alone = trainer(tmp_path / "one", recipe, task=task).run()
    together = [
        json.loads(line)
        for line in (tmp_path / "two" / "log.jsonl").read_text().splitlines()
    ]
    assert [row["tokens"] for row in together] == [row.tokens for row in alone]
    for one, other in zip(alone[1:], together[1:], strict=True):
        assert other["loss"] == pytest.approx(one.loss, rel=1e-4)
        assert other["gradient"] == pytest.approx(one.gradient, rel=1e-3)
        assert other["held_out"] == pytest.approx(one.held_out, rel=1e-4)


def test_many_devices_need_accelerate(monkeypatch):
    monkeypatch.setattr(devices, "find_spec", lambda name: None)
    with pytest.raises(InvalidRequest, match=r"foreword\[devices\]"):
        ManyDevices()


COUNTED = """
import json, resource, torch
from foreword_train.devices import keep_freed

def faults():
    # glibc 2.36 leaves small remnants between aligned blocks, a few times
    for _ in range(20):
        torch.ones(64 * 2**20 // 4)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(64 * 2**20 // 4)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(json.dumps([faults(), keep_freed(), faults()]))
"""
"""Pages touched anew while tensors of 64 MB come and go, before and after the call."""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only the GNU C library has mallopt"
)
def test_freed_memory_is_reused() -> None:
    # a process of its own: a training in this one has changed the allocator already
    before, kept, after = json.loads(printed("-c", COUNTED))
    assert before > 1000
    assert kept
    assert after < 100
