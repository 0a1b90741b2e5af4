"""One fault, and the search for it by the certificate."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import process_time

import pytest

from foreword import LLM
from foreword_lab.certify import run
from foreword_lab.certify.drafting import Drafting
from foreword_lab.certify.equality import SameText
from foreword_lab.certify.report import Check
from foreword_lab.certify.run import CertifyOptions
from foreword_lab.certify.sampling import Sampling
from foreword_lab.certify.setups import hold_in

Plant = Callable[[pytest.MonkeyPatch, LLM], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and how to plant it."""

    plant: Plant
    methods: tuple[str, ...] = ("lm",)
    """Methods that meet it, for a short search."""
    quick: bool = False
    """Whether a search of it belongs to every run of the tests."""


class Found(Exception):
    """A check differs; the search ends."""


@dataclass(frozen=True, slots=True)
class Find:
    """The check that differs first."""

    check: str
    """Empty = none does."""
    seconds: float
    """Seconds of processor time, which other programs do not lengthen."""


def search(llm: LLM, draftings: Sequence[Drafting], options: CertifyOptions) -> Find:
    """Run the certificate until a check differs."""
    began = process_time()
    found = ""
    with pytest.MonkeyPatch.context() as patch, fresh_pages(llm):
        patch.setattr(run, "check_rule", ending(run.check_rule))
        patch.setattr(run, "bits_check", ending(run.bits_check))
        patch.setattr(SameText, "compare", ending(SameText.compare))
        patch.setattr(Sampling, "sample", ending(Sampling.sample))
        try:
            run.examine(llm, [*draftings], options)
        except Found as one:
            found = str(one)
    return Find(found, process_time() - began)


def ending(checking: Callable) -> Callable:
    """Return what checks something, which then raises where that differs."""

    def checked(*given: object, **named: object) -> object:
        result = checking(*given, **named)
        (check,) = listed(given[0].check() if result is None else result)
        if check.status == "differs":
            raise Found(check.name)
        return result

    return checked


def listed(checks: Check | list[Check]) -> list[Check]:
    return checks if isinstance(checks, list) else [checks]


@contextmanager
def fresh_pages(llm: LLM) -> Iterator[None]:
    """Leave no request and no page of a search behind."""
    try:
        yield
    finally:
        scheduler = llm.engine.scheduler
        scheduler.running.clear()
        scheduler.waiting.clear()
        backend = llm.target.backend
        limit = backend.pool.limit
        hold_in(backend, backend.empty_pool())
        backend.pool.limit = limit
