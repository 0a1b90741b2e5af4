"""The bundled models and a server over them, shared by the tests of one worker."""

from collections.abc import Iterator

import pytest

from foreword import LLM
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.registry import PLAIN
from serving import Running, running


@pytest.fixture(scope="session")
def plain() -> Iterator[LLM]:
    """The target alone; drafters are given to it."""
    with LLM(method=PLAIN) as llm:
        yield llm


@pytest.fixture(scope="session")
def server() -> Iterator[Running]:
    """A fixed number of draft tokens, so that drafts are made however busy the machine
    is.
    """
    with LLM(slots=16, nodes=4) as llm, running(llm) as server:
        yield server


class Meddling(NgramDrafter):
    """Writes into the text that it drafts for."""

    @classmethod
    def load(cls, source, target, tokenizer):
        return cls()

    def propose(self, batch, nodes):
        for request in batch.requests:
            if request.produced > 6:
                request.tokens[-1] = 11
        return super().propose(batch, nodes)


@pytest.fixture
def meddling() -> type[Meddling]:
    return Meddling
