"""What the tests share that write and read files of other engines, or run them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gguf_files
import starter
from foreword.model import load_tokenizer
from foreword.prompts import load
from foreword_lab.bench.peers.engines import ENGINES
from foreword_lab.bench.records import BenchRequest
from foreword_lab.bench.run import Options, rendered, spread

TOKENS = 24


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    """The folder of a model with few tokens: many take long to write and to read."""
    return gguf_files.small_checkpoint(tmp_path_factory.mktemp("small"))


@pytest.fixture(autouse=True, scope="module")
def _kept_apart(tmp_path_factory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("peers")))
        yield


@pytest.fixture(scope="session")
def needs() -> Callable[[str], None]:
    """Skips a test where an engine is not installed."""

    def check(engine: str) -> None:
        for module in ENGINES[engine].modules:
            pytest.importorskip(module)

    return check


@pytest.fixture(scope="module")
def requests() -> list[BenchRequest]:
    """Greedy requests of four prompts."""
    options, tokenizer = Options(max_tokens=TOKENS), load_tokenizer(starter.target())
    return [
        BenchRequest(one.id, rendered(one, tokenizer, 1024, options), 0.0, seed, TOKENS)
        for seed, one in enumerate(spread(load("in-domain"), 4))
    ]
