"""A GGUF file, and the cache of a machine without a network."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

import gguf_files
from foreword.model.loading import hub


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small draft model in bfloat16, with its tokenizer."""
    return gguf_files.small(tmp_path_factory.mktemp("gguf"))


@pytest.fixture
def snapshot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder of some/model in the cache; empty."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    # seconds; or a test may fall between two moments
    monkeypatch.setattr(hub, "FRESH", 1e12)
    hub._answers.cache_clear()
    model = tmp_path / "cache" / "models--some--model"
    folder = model / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("abc")
    yield folder
    hub._answers.cache_clear()
