"""The bundled target with two adapters, and any drafter."""

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
    return tiny_lora.two(base, home)


@pytest.fixture(
    scope="session", params=["native", pytest.param("pool", marks=pytest.mark.slow)]
)
def llm(folders: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[LLM]:
    """A fixed number of draft tokens, however busy the machine is."""
    backend = request.param
    with LLM(adapters=folders, nodes=4, slots=16, backend=backend) as llm:
        yield llm
