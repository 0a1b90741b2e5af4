"""Folders with trained parts come back as they were, or their fault is said."""

import json

import pytest
import torch
from torch import nn

from foreword.errors import ModelError
from foreword.model.loading.checkpoint import Checkpoint

TENSORS = {"weight": torch.arange(6.0).view(2, 3), "bias": torch.tensor([1.0, 2.0])}


@pytest.fixture
def folder(tmp_path):
    Checkpoint("here", {"hidden_size": 3}, TENSORS).write(tmp_path / "made" / "anew")
    return tmp_path / "made" / "anew"


def test_what_is_written_is_read(folder):
    found = Checkpoint.read(folder)
    assert found.config == {"hidden_size": 3}
    layer = found.filled(lambda: nn.Linear(3, 2))
    assert torch.equal(layer.weight, TENSORS["weight"])


def test_pickled_weights_are_read_without_running_them(folder):
    (folder / "model.safetensors").unlink()
    torch.save(TENSORS, folder / "pytorch_model.bin")
    assert torch.equal(Checkpoint.read(folder).tensors["bias"], TENSORS["bias"])
    torch.save({"weight": print}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="holds more than tensors"):
        Checkpoint.read(folder)


MISSING = ("folder", "config", "json")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        *((one, "Give a folder that holds config.json") for one in MISSING),
        ("weights", "it holds config.json but no weights"),
        ("bytes", "its safetensors file is damaged or incomplete"),
    ],
)
def test_unreadable_file_is_refused(folder, wrong, says):
    match wrong:
        case "config":
            (folder / "config.json").unlink()
        case "json":
            (folder / "config.json").write_text("{")
        case "weights":
            (folder / "model.safetensors").unlink()
        case "bytes":
            (folder / "model.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(ModelError, match=says):
        Checkpoint.read(folder / "elsewhere" if wrong == "folder" else folder)


def test_tensors_that_do_not_fit_are_named(folder):
    found = Checkpoint.read(folder)
    with pytest.raises(ModelError, match="bias, which its config has no place for"):
        found.filled(lambda: nn.Linear(3, 2, bias=False))
    with pytest.raises(ModelError, match=r"has the shape \[2, 3\], not \[2, 4\]"):
        found.filled(lambda: nn.Linear(4, 2))
    with pytest.raises(ModelError, match=r"lacks 0\.bias, 0\.weight; it holds"):
        found.filled(lambda: nn.Sequential(nn.Linear(3, 2)))
    assert json.loads((folder / "config.json").read_text())
