"""The bundled target with two adapters, and any drafter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

import tiny_lora
from foreword import LLM, bundled


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two adapters of the bundled target, by name."""
    home = tmp_path_factory.mktemp("adapters")
    base = AutoModelForCausalLM.from_pretrained(bundled.target(), dtype="float32")
    wide = dict(r=16, target_modules="all-linear")
    # so slight that drafts of the base still predict their text
    tiny_lora.save(base, home / "a", 1, 0.2)
    tiny_lora.save(base, home / "b", 2, 0.1, **wide)
    return {"a": home / "a", "b": home / "b"}


@pytest.fixture(scope="session")
def llm(folders: dict[str, Path]) -> Iterator[LLM]:
    """A fixed number of draft tokens, so that drafts are made however busy the machine
    is.
    """
    with LLM(adapters=folders, nodes=4, slots=16) as llm:
        yield llm
