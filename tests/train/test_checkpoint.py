"""A checkpoint is complete or absent, also when its writing is interrupted."""

import pytest

from foreword_train import checkpoint


def names(folder) -> list[str]:
    return [path.name for path in checkpoint.found(folder)]


def write(folder) -> None:
    (folder / "a").write_text("whole")


def test_the_last_two_are_kept(tmp_path):
    for step in (5, 10, 100):
        checkpoint.save(tmp_path / "deep" / "folder", step, write)
    assert names(tmp_path / "deep" / "folder") == ["step-000000010", "step-000000100"]


def test_failed_save_leaves_the_last_one(tmp_path):
    checkpoint.save(tmp_path, 5, write)

    def fail(folder) -> None:
        write(folder)
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        checkpoint.save(tmp_path, 10, fail)
    assert names(tmp_path) == ["step-000000005"]
    checkpoint.save(tmp_path, 10, write)
    assert names(tmp_path) == ["step-000000005", "step-000000010"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_interrupted_removal_leaves_no_checkpoint(tmp_path, monkeypatch):
    for step in (1, 2):
        checkpoint.save(tmp_path, step, write)
    monkeypatch.setattr(
        checkpoint.shutil,
        "rmtree",
        lambda path: (_ for _ in ()).throw(KeyboardInterrupt),
    )
    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path, 3, write)
    monkeypatch.undo()
    assert names(tmp_path) == ["step-000000002", "step-000000003"]
    checkpoint.save(tmp_path, 4, write)
    assert names(tmp_path) == ["step-000000003", "step-000000004"]
    assert len(list(tmp_path.iterdir())) == 2


def test_the_same_step_may_be_saved_again(tmp_path):
    checkpoint.save(tmp_path, 5, write)
    checkpoint.save(tmp_path, 5, lambda folder: (folder / "b").write_text("new"))
    assert [path.name for path in (tmp_path / "step-000000005").iterdir()] == ["b"]
