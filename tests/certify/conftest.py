"""The bundled target, shared by the tests of one worker, and a drafter at fault."""

from collections.abc import Iterator

import pytest

from foreword import LLM
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.registry import PLAIN


@pytest.fixture(scope="session")
def plain() -> Iterator[LLM]:
    """The target alone; drafters are given to it."""
    with LLM(method=PLAIN) as llm:
        yield llm


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
