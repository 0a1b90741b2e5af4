"""The benchmark of weights on disk: only our rows, with the bytes read per token."""

import os

import pytest

from foreword.native import cgroups
from foreword_lab.bench.run import Options, run
from grids import NEEDS_C


@NEEDS_C
def test_fewer_bytes_are_read_per_token_with_drafts(monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text("12000000\n")
    (tmp_path / "memory.stat").write_text("anon 0\n")
    monkeypatch.setattr(cgroups, "ROOT", tmp_path)
    options = Options(
        offload_folder=str(tmp_path / "weights"),
        weights="int4",
        methods=("lm",),
        temperatures=(0.0,),
        limit_prompts=1,
        max_tokens=24,
        budget="heuristic",
    )
    report = run(options)
    plain, drafted = report.rows
    assert (plain.name, drafted.name, drafted.same_text) == ("plain", "lm", True)
    assert drafted.acceptance > 0
    assert report.exclusions == {
        "transformers.generate": "it would hold all weights in memory"
    }
    try:
        os.close(os.open(tmp_path / "memory.max", os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system is not read past the page cache")
    layers = (
        sum(
            file.stat().st_size for file in (tmp_path / "weights").rglob("matrices.bin")
        )
        // 2
    )
    assert layers < plain.disk_bytes_per_token < 4 * layers
    assert drafted.disk_bytes_per_token < plain.disk_bytes_per_token
    assert "GB from disk per token" in str(report.table().caption)
