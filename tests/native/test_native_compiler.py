"""With no compiler, or one that fails, torch computes the same numbers."""

import json
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from command import SOURCE, printed
from foreword.native import compiler
from foreword.native.openmp import all_threads, one_thread, threads

PROGRAM = """
import json
import torch
from foreword.native import sampling
from foreword.sampling.draw import draw, drawn_tokens
from foreword.sampling.noise import gumbel, plain_gumbel

noise = gumbel([3, 5], 320)
logits = torch.randn(2, 320, generator=torch.Generator().manual_seed(1))
chosen = drawn_tokens(logits, [(0.7, 5), (0.7, 3)]).tolist()
same = chosen == draw(logits / 0.7, noise[[1, 0]]).tolist()
close = torch.allclose(noise, plain_gumbel([3, 5], 320), rtol=2e-7, atol=1e-7)
found = {"reason": sampling.reason(), "compiled": sampling.library() is not None, "same": same, "close": close}
print(json.dumps(found))
"""
needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None, reason="there is no C compiler"
)


def test_without_a_compiler_torch_computes(tmp_path):
    """In a new process, as the libraries of this one are loaded already."""
    own = {"CC": "/nonexistent", "FOREWORD_CFLAGS": "", "OMP_NUM_THREADS": "1"}
    own |= {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(SOURCE)}
    found = json.loads(printed("-c", PROGRAM, **own))
    assert "the C compiler '/nonexistent'" in found["reason"]
    assert (found["compiled"], found["same"], found["close"]) == (False, True, True)


@needs_compiler
@pytest.mark.parametrize("command", ["env cc -DUNUSED='two words'", "  "])
def test_compiler_may_be_several_words_or_none(tmp_path, compile_with, command):
    assert compile_with(tmp_path, CC=command) == ([True, True], None, [])
    files = (tmp_path / "foreword").iterdir()
    assert [file.suffix for file in files] == [".so", ".so"]


REASONS = [
    (
        "/nonexistent",
        "",
        "the C compiler '/nonexistent', which the variable CC names, is not installed",
    ),
    ("/nonexistent -m64", "", "the C compiler '/nonexistent'"),
    ("cc 'half", "", 'the variable CC holds "cc \'half"'),
    ("false", "", "false could not compile sampling.c: "),
    (
        "cc --no-such-option",
        "",
        "cc --no-such-option could not compile sampling.c: .*no-such-option",
    ),
    (
        "cc",
        "-DUNUSED='two words' -include no/such/file.h",
        (
            "cc '-DUNUSED=two words' -include no/such/file.h could not compile "
            "sampling.c: .*no/such/file.h"
        ),
    ),
    ("cc", "'half", 'the variable FOREWORD_CFLAGS holds "\'half"'),
]
"""Compiler, flags, and what the reason begins with."""


@needs_compiler
@pytest.mark.parametrize(("command", "flags", "why"), REASONS)
def test_failing_compiler_is_warned_of_once(
    tmp_path, compile_with, command, flags, why
):
    got = compile_with(tmp_path, CC=command, FOREWORD_CFLAGS=flags)
    (warning,) = got.warnings
    assert got.libraries == [False, False]
    assert re.match(why, got.reason)
    assert re.search(why, warning)
    assert "PyTorch" in warning


@needs_compiler
def test_last_line_of_a_failing_compiler_is_the_reason(tmp_path, compile_with):
    compiler = tmp_path / "compiler"
    compiler.write_text(
        "#!/bin/sh\necho 'a word before' >&2\necho 'the disk is on fire' >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    (warning,) = compile_with(tmp_path, CC=str(compiler)).warnings
    assert "the disk is on fire" in warning
    assert "a word before" not in warning


@needs_compiler
def test_slow_compiler_is_stopped(tmp_path, monkeypatch):
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
def test_only_this_thread_of_torch_is_limited():
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
