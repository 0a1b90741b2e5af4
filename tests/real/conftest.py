"""Published models, loaded one at a time, kept in $FOREWORD_PUBLISHED or the cache."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from foreword import LLM
from real.fetching import fetched

DRAFTS = {"qwen-1.5b": "qwen-0.5b"}
"""Name of a model -> that of its draft model, which shares its vocabulary."""


@pytest.fixture(autouse=True, scope="session")
def all_cores(one_thread: None) -> None:
    """These tests run alone; OMP_NUM_THREADS lets them run beside other programs."""
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or cores))


@pytest.fixture(scope="session")
def model() -> Callable[[str], Path]:
    """Return a function that fetches a model, and skips the test where none is."""
    return fetched


@pytest.fixture(scope="session")
def opened(model: Callable[[str], Path]) -> Callable[..., LLM]:
    """Return a function that loads a model, and the draft model if it has one."""

    def loaded(name: str, **options: str) -> LLM:
        draft = model(DRAFTS[name]) if name in DRAFTS else None
        return LLM(model(name), draft=draft, nodes=4, **options)

    return loaded


@pytest.fixture(scope="package", params=["smollm2", "qwen-0.5b", "qwen-1.5b"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="package")
def llm(name: str, opened: Callable[..., LLM]) -> Iterator[LLM]:
    with opened(name) as llm:
        yield llm
