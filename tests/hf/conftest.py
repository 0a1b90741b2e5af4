"""A default budget that no clock changes, so that there are draft tokens."""

import pytest
import torch
import transformers as hf

import starter
from foreword.budget import BUDGETS, FixedBudget
from foreword.hf import borrowed, job


class Four(FixedBudget):
    """Four draft tokens a round, whatever forwards of this machine cost."""

    @classmethod
    def from_text(cls, source):
        return lambda _: cls(4)


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default budget allows four draft tokens, whatever was learnt before."""
    for record in borrowed._RECORDS.values():
        record._budgets.clear()
    monkeypatch.setitem(BUDGETS, "four", Four)
    monkeypatch.setattr("foreword.budget.DEFAULT_BUDGET", "four")


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list:
    """The sequences that our loop has run, in order."""
    ran: list = []
    whole = job.run
    monkeypatch.setattr(
        job,
        "run",
        lambda loop, rows, streamer: (whole(loop, rows, streamer), ran.extend(rows)),
    )
    return ran


@pytest.fixture(scope="module")
def shipped():
    """Target, draft and tokenizer of the family, float32, as users load them."""
    target, draft = (
        hf.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        for path in (starter.target(), starter.draft())
    )
    return target, draft, hf.AutoTokenizer.from_pretrained(starter.target())
