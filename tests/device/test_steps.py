"""Every command line of tests/device is one that its program takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from device.steps import Step, steps
from foreword.cli.app import app

DEVICES = ("cuda", "cpu")
RUN = Path(__file__).with_name("run.sh")
COMMANDS = [one for device in DEVICES for one in steps(device) if one.words[0] != "python"]
PROGRAMS = [one for one in steps("cuda") if one.words[0] == "python"]


@pytest.mark.parametrize("step", COMMANDS, ids=lambda one: f"{one.words[0]} {one.name}")
def test_options_of_commands_exist(step: Step):
    program, words = get_command(app), step.command(Path("found.json"))[3:]
    while hasattr(program, "resolve_command"):
        with program.make_context("foreword", [*words]) as context:
            words = [*context._protected_args, *context.args]
            _, program, words = program.resolve_command(context, words)
    with program.make_context("foreword", words) as context:
        assert Path("found.json") in context.params.values()


@pytest.mark.parametrize("step", PROGRAMS, ids=lambda one: one.name)
def test_programs_and_tests_exist(step: Step):
    assert Path(step.words[1]).is_file()
    paths = [one.partition("::")[0] for one in step.words[3:] if "/" in one]
    assert all(Path(one).exists() for one in paths)


def test_what_no_longer_fits_is_skipped_and_said(tmp_path):
    ran = run_script(tmp_path, LIMIT_S="0")
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    names = [one.name for one in steps("cpu")]
    assert ran.returncode == 1
    assert [one["name"] for one in summary["steps"]] == names
    assert {one["state"] for one in summary["steps"]} == {"skipped"}


def test_a_failing_step_leaves_its_reason(tmp_path):
    ran = run_script(tmp_path, "limit-1b", DEVICE="cuda:77")
    (step,) = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["steps"]
    assert (ran.returncode, step["state"], step["code"]) == (1, "failed", 1)
    assert "cannot use device 'cuda:77'" in step["tail"]


def test_list_runs_no_step(tmp_path):
    lines = run_script(tmp_path, "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [one.name for one in steps("cpu")]
    assert list(tmp_path.iterdir()) == []


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
