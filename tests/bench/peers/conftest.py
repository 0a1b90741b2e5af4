"""A tiny checkpoint for the tests that write and read files of other engines."""

import json
from pathlib import Path
from shutil import copy

import pytest

import pair
import starter


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    """The folder of a tiny model with the first tokens of the usual tokenizer: a large
    vocabulary takes long to write and to read.
    """
    folder = tmp_path_factory.mktemp("small")
    pair.llama().save_pretrained(folder)
    copy(starter.target() / "tokenizer_config.json", folder)
    file = json.loads((starter.target() / "tokenizer.json").read_text(encoding="utf-8"))
    model = file["model"]
    model["vocab"] = {
        token: place for token, place in model["vocab"].items() if place < pair.VOCAB
    }
    model["merges"] = [one for one in model["merges"] if "".join(one) in model["vocab"]]
    (folder / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    return folder
