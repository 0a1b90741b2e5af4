"""With no compiler, or one that fails, there is a reason and the numbers stay; each
case in a process of its own.
"""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import foreword
from foreword.native import compiler
from foreword.native.openmp import all_threads, one_thread, threads

SOURCE = Path(foreword.__file__).parents[1]
PROGRAM = """
import json
import torch
from foreword.native import sampling
from foreword.sampling.draw import choose, draw
from foreword.sampling.noise import gumbel, plain_gumbel
from foreword.types import SamplingParams

noise = gumbel([3, 5], [0, 9], 320)
logits = torch.randn(2, 320, generator=torch.Generator().manual_seed(1))
chosen = choose(logits, SamplingParams(temperature=0.7), noise, [1, 0])
same = chosen == draw(logits / 0.7, noise[[1, 0]]).tolist()
close = torch.allclose(noise, plain_gumbel([3, 5], [0, 9], 320), rtol=2e-7, atol=1e-7)
found = {"reason": sampling.reason(), "compiled": sampling.library() is not None, "same": same, "close": close}
print(json.dumps(found))
"""
needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None, reason="there is no C compiler"
)


def found(tmp_path: Path, compiler: str, flags: str = "") -> dict:
    """What a fresh process finds with this compiler and an empty cache."""
    own = {
        "CC": compiler,
        "FOREWORD_CFLAGS": flags,
        "XDG_CACHE_HOME": str(tmp_path),
        "PYTHONPATH": str(SOURCE),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", PROGRAM]
    told = subprocess.run(
        command,
        env=os.environ | own,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return json.loads(told.stdout)


@pytest.mark.parametrize(
    ("compiler", "said"),
    [
        ("/nonexistent", "no C compiler '/nonexistent'"),
        ("/nonexistent -m64", "no C compiler '/nonexistent'"),
        ("cc 'half", 'CC holds "cc \'half"'),
        ("false", "false could not compile sampling.c"),
    ],
)
def test_without_a_compiler_the_reason_is_known_and_torch_takes_over(
    tmp_path, compiler, said
):
    told = found(tmp_path, compiler)
    assert said in told["reason"]
    assert (told["compiled"], told["same"], told["close"]) == (False, True, True)


@needs_compiler
@pytest.mark.parametrize("compiler", ["cc", "env cc -DUNUSED='two words'", "  "])
def test_a_compiler_may_be_several_words(tmp_path, compiler):
    assert found(tmp_path, compiler) == {
        "reason": None,
        "compiled": True,
        "same": True,
        "close": True,
    }
    assert [file.suffix for file in (tmp_path / "foreword").iterdir()] == [".so"]


@needs_compiler
def test_what_a_compiler_says_is_the_reason(tmp_path):
    told = found(tmp_path, "cc --no-such-option")
    assert "cc --no-such-option could not compile sampling.c: " in told["reason"]
    assert "no-such-option" in told["reason"].partition(": ")[2]


@needs_compiler
def test_flags_of_ones_own_are_used_and_named(tmp_path):
    told = found(tmp_path, "cc", "-DUNUSED='two words' -include no/such/file.h")
    assert (
        "cc '-DUNUSED=two words' -include no/such/file.h could not compile sampling.c: "
        in told["reason"]
    )
    assert "no/such/file.h" in told["reason"].partition(": ")[2]
    assert found(tmp_path, "cc", "'half")["reason"].startswith(
        'the variable FOREWORD_CFLAGS holds "\'half"'
    )
    assert found(tmp_path, "cc", "-O1")["compiled"]


@needs_compiler
def test_a_compiler_that_takes_too_long_is_said_to(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "SECONDS", 1e-3)
    monkeypatch.setattr(compiler, "_warned", set())
    with pytest.warns(RuntimeWarning, match="C code is off"):
        reason = compiler.compiled(compiler.SOURCES / "sampling.c")
    assert str(reason).endswith("took longer than 0.001 s to compile sampling.c")


@pytest.mark.skipif(
    sys.platform != "linux" or not torch.backends.openmp.is_available(),
    reason="torch has no OpenMP",
)
def test_torch_is_kept_to_one_thread_here_and_nowhere_else():
    torch.set_num_threads(3)
    try:
        with one_thread():
            assert (torch.get_num_threads(), threads()) == (1, 3)
            with ThreadPoolExecutor(1) as elsewhere:
                assert elsewhere.submit(torch.get_num_threads).result() == 3
            with all_threads():
                assert (torch.get_num_threads(), threads()) == (3, 3)
            assert (torch.get_num_threads(), threads()) == (1, 3)
        assert (torch.get_num_threads(), threads()) == (3, 3)
        with pytest.raises(KeyError), one_thread():
            raise KeyError
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
