"""The service that answers a file of requests."""

from typing import Any

from foreword.api.llm import LLM
from foreword_server.service import Service
from foreword_server.settings import Settings

QUEUE = 2**20
"""Answers that run or wait: no bound, because `run` sends a number at a time."""


def load(model: str | None, options: dict[str, Any]) -> Service:
    """Return the service of a model; `options`: the other settings of LLM."""
    llm = LLM(model, **options)
    return Service(llm, Settings(queue=QUEUE), bundled=model is None)
