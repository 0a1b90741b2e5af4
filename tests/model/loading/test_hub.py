"""A silent hub is tried once; code of a model's folder runs only when asked for."""

import ast
import io
import shutil
import socket
import sys
import threading
from pathlib import Path

import pytest
from huggingface_hub import constants

import starter
from folders import configured
from foreword import LLM
from foreword.draft import default_method
from foreword.errors import ModelError
from foreword.model import Model, load_tokenizer
from foreword.model.loading import hub

SOURCE = Path(hub.__file__).parents[1]

ONCE = 2
"""Calls of one try: where the server hangs up at once, clients call again."""


class Silent:
    """A hub that takes calls, counts them, and hangs up."""

    def __init__(self) -> None:
        self.calls = 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.place = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self.server.accept()
            except OSError:
                return
            self.calls += 1
            caller.close()


@pytest.fixture
def silent(monkeypatch, tmp_path):
    made = Silent()
    monkeypatch.setattr(constants, "ENDPOINT", made.place)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        made.place + "/{repo_id}/resolve/{revision}/{filename}",
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    # seconds; or a test may fall between two moments
    monkeypatch.setattr(hub, "FRESH", 1e12)
    hub._answers.cache_clear()
    yield made
    hub._answers.cache_clear()
    made.server.close()


def test_an_id_that_is_nowhere_is_tried_once(silent):
    for load in (Model.load, load_tokenizer, lambda source: LLM(source)):
        with pytest.raises(ModelError, match="no such folder exists, it is not in"):
            load("some/model")
    assert default_method("some/model") == "lm"
    assert 0 < silent.calls <= ONCE


def cached(folder: Path) -> None:
    """Put the draft model into the cache of the hub, as some/model."""
    place = folder / "cache" / "models--some--model"
    shutil.copytree(starter.draft(), place / "snapshots" / "abc")
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("abc")


def test_a_file_is_looked_for_without_fetching_it(silent, tmp_path):
    assert not hub.file("some/model", "model.safetensors", fetch=False).is_file()
    cached(tmp_path)
    assert hub.file("some/model", "model.safetensors", fetch=False).is_file()
    assert silent.calls == 0


def test_an_id_in_the_cache_is_loaded_after_one_try(silent, tmp_path):
    cached(tmp_path)
    assert Model.load("some/model", device="cpu").vocab == len(
        load_tokenizer("some/model")
    )
    assert 0 < silent.calls <= ONCE


def test_folder_needs_no_network(silent):
    assert LLM(starter.draft(), method="none").target.vocab == 8192
    assert silent.calls == 0


CODE = """
from pathlib import Path
from transformers import LlamaConfig
Path(__file__).parent  # the copy that transformers keeps
Path({mark!r}).touch()
class OwnConfig(LlamaConfig):
    model_type = "own"
"""


@pytest.fixture
def coded(copied):
    """A model that needs code from its folder, and the file that the code makes."""
    (copied / "own.py").write_text(CODE.format(mark=str(copied.parent / "ran")))
    own = {"AutoConfig": "own.OwnConfig"}
    return configured(copied, model_type="own", auto_map=own)


@pytest.mark.parametrize("load", [Model.load, LLM], ids=["Model", "LLM"])
def test_code_of_a_folder_does_not_run_unasked(coded, monkeypatch, load):
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    with pytest.raises(ModelError, match=r"Python code .*trust_remote_code=True"):
        load(coded)
    assert not (coded.parent / "ran").exists()
    assert sys.stdin.read() == "y\n" * 9


def test_code_of_a_folder_runs_where_it_is_trusted(coded, monkeypatch, tmp_path):
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules")
    )
    # there is no model of that kind: its code was run to find out
    with pytest.raises(ModelError, match="OwnConfig"):
        Model.load(coded, device="cpu", trust_remote_code=True)
    assert (coded.parent / "ran").exists()


def test_code_that_is_not_needed_is_left_alone(copied):
    configured(copied, auto_map={"AutoConfig": "own.Own"})
    assert Model.load(copied, device="cpu").vocab == 8192


def test_every_loader_says_whether_code_is_trusted():
    """transformers asks on stdin where it is not told."""
    silent = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "attr", "") == "from_pretrained"
            ):
                owner = ast.unparse(node.func.value)  # type: ignore[attr-defined]
                told = any(
                    keyword.arg == "trust_remote_code" for keyword in node.keywords
                )
                # which run no code
                if not told and owner not in ("LlamaConfig", "GenerationConfig"):
                    silent.append(f"{path.name}:{node.lineno}")
            assert not (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == "input"
                and "cli" not in path.parts
            )
    assert silent == []
