"""Ranks end with rank 0, and rank 0 sees the end of a rank: nothing waits for ever."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import distributed

from command import have_ended
from foreword import LLM, SamplingParams, bundled
from foreword.errors import InvalidRequest, ModelError
from foreword.model.parallel.lead import uninterrupted
from foreword.model.parallel.ranks import Order, Ranks
from foreword.options import ModelOptions

HELD = """
import os, sys
from foreword import LLM
from foreword import bundled
llm = LLM(bundled.target(), method="none", dtype="float32", tensor_parallel=2)
lead = llm.target.backend.lead
print(*[one.pid for one in lead.ranks.processes], flush=True)
sys.stdin.read()
"""
PARAMS = SamplingParams(temperature=0, max_tokens=8)
OPTIONS = ModelOptions(dtype="float32", tensor_parallel=2)


def opened() -> LLM:
    return LLM(bundled.target(), method="none", dtype="float32", tensor_parallel=2)


def ranks_of(llm: LLM) -> Ranks:
    return llm.target.backend.lead.ranks


@pytest.mark.slow
def test_killed_rank_fails_requests_and_a_closed_one_makes_room():
    with opened() as llm:
        assert llm.generate(["One"], PARAMS)[0].tokens
        with pytest.raises(InvalidRequest, match="Close that model"):
            opened()
        (process,) = ranks_of(llm).processes
        backend = llm.target.backend
        assert backend.ranks_alive
        os.kill(process.pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(ModelError, match="rank 1 ended: killed by signal 9"):
                llm.generate(["One", "Two"], PARAMS)
        assert not backend.ranks_alive
    del llm, backend
    with opened() as llm:
        assert llm.generate(["One"], PARAMS)[0].tokens
        ranks = ranks_of(llm)
    del llm
    assert not distributed.is_initialized()
    assert [one.returncode for one in ranks.processes] == [0]
    assert not ranks.folder.exists()


def test_killed_in_the_middle_of_a_text():
    with opened() as llm:
        answer = llm.stream("Once upon a time", PARAMS)
        next(answer)
        os.kill(ranks_of(llm).processes[0].pid, signal.SIGKILL)
        with pytest.raises(ModelError, match="Load the model again"):
            list(answer)


def test_killed_before_it_joins():
    ranks = Ranks(Order(str(bundled.target()), OPTIONS, "cpu"))
    ranks.processes[0].kill()
    with pytest.raises(ModelError, match="rank 1 ended: killed by signal 9"):
        ranks.join()
    ranks.end()


def test_rank_that_fails_says_why(tmp_path: Path):
    """It finds no model, and rank 0 waits for its share of the weights."""
    ranks = Ranks(Order(tmp_path / "none", OPTIONS, "cpu"))
    ranks.join()
    with pytest.raises(RuntimeError) as broken:
        distributed.all_reduce(torch.ones(1))
    with pytest.raises(ModelError, match=r"rank 1 ended: cannot load .*none"):
        ranks.fail(broken.value)


def test_damaged_weights_are_named_and_no_rank_stays(tmp_path: Path):
    for file in bundled.target().iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"model\.norm\.weight holds NaN"):
        LLM(tmp_path, method="none", dtype="float32", tensor_parallel=2)
    assert not distributed.is_initialized()


@pytest.mark.slow
def test_ranks_end_when_rank_0_is_killed(tmp_path: Path):
    command = [sys.executable, "-P", "-c", HELD]
    first = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "TMPDIR": str(tmp_path),
        },
    )
    with first:
        pids = [int(one) for one in first.stdout.readline().split()]
        assert len(pids) == 1
        (folder,) = tmp_path.glob("foreword-ranks-*")
        assert folder.stat().st_mode & 0o777 == 0o700
        first.kill()
    assert have_ended(pids)
    assert not folder.exists()


def interrupted(done: list[str]) -> None:
    with uninterrupted():
        signal.raise_signal(signal.SIGINT)
        done.append("forward")


def test_interrupt_waits_until_all_ranks_have_done_the_same():
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(done)
    assert done == ["forward"]
