"""The command line takes the number of ranks under both names."""

from pathlib import Path

import pytest

from command import Shell


@pytest.mark.parametrize("name", ["--tensor-parallel", "--tensor-parallel-size"])
def test_number_of_ranks_is_checked(name: str, tmp_path: Path):
    ended = Shell(tmp_path)("generate", "One", name, "3")
    assert ended.returncode == 1
    assert "cannot split" in ended.stderr
    assert ended.stderr.rstrip().endswith("Use 2 or 4")


def test_one_text_on_two_ranks(tmp_path: Path):
    shell = Shell(tmp_path)
    options = ("--seed", "1", "--max-tokens", "12", "--dtype", "float32", "--quiet")
    split = shell("generate", "Once upon", *options, "--tensor-parallel", "2")
    whole = shell("generate", "Once upon", *options, "--backend", "pool")
    assert split.returncode == 0
    assert split.stderr == ""
    assert split.stdout == whole.stdout != ""
