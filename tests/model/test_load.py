"""Loading: how large a model is, and what is said about one that cannot be loaded, whoever found the fault."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import starter
from foreword.errors import ModelError
from foreword.model import Model, load_tokenizer


@pytest.mark.parametrize("dtype", ["auto", "float32", "float16"])
def test_parameters_are_counted_before_a_driver_repacks_them(dtype):
    assert Model.load(starter.target(), dtype=dtype, device="cpu").parameters == 16_128_384


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(starter.draft(), tmp_path / "model"))


def test_weights_that_end_too_soon_are_an_error_of_ours(copied):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])
    with pytest.raises(ModelError, match=r"^cannot load a model from '.*model': .+\. Give a folder"):
        Model.load(copied)


@pytest.mark.filterwarnings("ignore")
def test_weights_of_another_size_are_an_error_of_ours(copied):
    config = json.loads((copied / "config.json").read_text(encoding="utf-8"))
    config["intermediate_size"] += 16
    (copied / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelError, match="cannot load a model"):
        Model.load(copied)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("the first line:\nthe second"), "first line. Give a folder"),
        (ImportError("needs a package"), "needs a package. Give a folder"),
        (RuntimeError("\n"), "RuntimeError. Give a folder"),
        (torch.OutOfMemoryError("no memory"), "does not fit on cpu: no memory. Try a smaller dtype"),
        (ModelError("said already"), "^said already$"),
    ],
)
def test_every_failure_says_what_to_do(monkeypatch, error, said):
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
    with pytest.raises(ModelError, match=said):
        Model.load(starter.draft(), device="cpu")


@pytest.mark.parametrize("source", ["/no/such/folder", "./none", "~/no/such/folder"])
def test_a_tokenizer_is_not_looked_for_on_the_hub_under_the_name_of_a_folder(source):
    with pytest.raises(ModelError, match=f"{source} has no tokenizer that can be loaded: there is no such folder$"):
        load_tokenizer(source)


def test_a_folder_that_does_not_exist_is_not_looked_for_on_the_hub(tmp_path):
    with pytest.raises(ModelError, match=r"nowhere': there is no such folder\. Give one"):
        Model.load(tmp_path / "nowhere")


@pytest.mark.parametrize("device", ["nonsense", "cuda:77", ""])
def test_a_device_that_is_not_here_is_refused(device):
    """Some of these torch calls a RuntimeError, some an AssertionError."""
    with pytest.raises(ModelError, match=f"device '{device}' cannot be used here: .*Use 'auto', 'cpu' or one that"):
        Model.load(starter.draft(), device=device)
