"""Every command line of recipes/device is one that its program takes."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from foreword.cli.app import app

RUN = Path(__file__).with_name("run.sh")


def run_script(folder: Path, *words: str, **variables: str):
    given = {"OUT": str(folder), "DEVICE": "cpu", "PYTHON": sys.executable} | variables
    return subprocess.run(
        ["bash", RUN, *words],
        env=os.environ | given,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_step_is_a_command_that_exists(device, tmp_path):
    steps = run_script(tmp_path, "--list", DEVICE=device).stdout.splitlines()
    assert len(steps) == 15
    assert not list(tmp_path.iterdir())
    for _, limit, first, *words in map(shlex.split, steps):
        assert float(limit) > 0
        if first == "python":
            paths = [
                one.partition("::")[0]
                for one in words
                if one.startswith(("tests/", "recipes/"))
            ]
            assert paths
            assert all(Path(one).exists() for one in paths)
            continue
        program, words = get_command(app), [first, *words, "--json", "found.json"]
        while hasattr(program, "resolve_command"):
            with program.make_context("foreword", words) as context:
                words = [*context._protected_args, *context.args]
                _, program, words = program.resolve_command(context, words)
        with program.make_context("foreword", words) as context:
            assert Path("found.json") in context.params.values()


def test_what_no_longer_fits_is_skipped_and_said(tmp_path):
    ran = run_script(tmp_path, LIMIT_S="0")
    steps = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["steps"]
    assert ran.returncode == 1
    assert [one["state"] for one in steps] == ["skipped"] * 15


def test_a_failing_step_leaves_its_reason(tmp_path):
    ran = run_script(tmp_path, "limit-1b", DEVICE="cuda:77")
    (step,) = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))[
        "steps"
    ]
    assert (ran.returncode, step["state"], step["code"]) == (1, "failed", 1)
    assert "cannot use device 'cuda:77'" in " ".join(step["tail"].split())
