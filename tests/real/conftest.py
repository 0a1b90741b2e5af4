"""Published models, each loaded once and closed before the next, with all cores."""

import os
from collections.abc import Iterator

import pytest
import torch

from foreword import LLM
from real.published import NAMES, opened


@pytest.fixture(autouse=True, scope="session")
def all_cores(one_thread: None) -> None:
    """These tests run alone."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))


@pytest.fixture(scope="package", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="package")
def llm(name: str) -> Iterator[LLM]:
    with opened(name) as llm:
        yield llm
