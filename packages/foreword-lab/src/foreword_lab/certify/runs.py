"""Requests through the engine, with a drafter, a batch and a size of prompt chunks."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from foreword.api.llm import LLM
from foreword.api.session import completed
from foreword.engine.speculator import Speculator
from foreword.types import Completion
from foreword_lab.certify.cases import Case

WHOLE, CHUNK = 512, 7
"""Tokens. Read of a prompt in one round: more than any of these prompts, and few enough
that each takes several rounds.
"""
Outcome = tuple[Completion, bool]
"""An answer, and whether its request was preempted."""
BATCH = 32
"""Sequences. Batch of samples that are drawn together."""
ROUNDS = 3
"""Rounds after which no page is left: each request has draft tokens behind it."""


TOGETHER, CHUNKED = "beside others", "prompt in chunks"
PREEMPTED = "preempted"
"""Conditions that requests run under: all at once, with prompts read in parts, and with
so few pages that some lose theirs and are read again.
"""


def run(
    llm: LLM,
    cases: Sequence[Case],
    speculator: Speculator | None = None,
    conditions: Sequence[str] = (),
) -> list[Completion]:
    """Return the completions of the requests; without a speculator, by plain
    decoding.
    """
    return [answer for answer, _ in outcomes(llm, cases, speculator, conditions)]


def reference(llm: LLM, cases: Sequence[Case]) -> list[Completion]:
    """Return the completions by plain decoding of each request alone, without keys and
    values that others left.
    """
    answers = []
    for case in cases:
        if (pool := llm.target.backend.pool) is not None:
            pool.prefixes.clear()
        answers += run(llm, [case])
    return answers


def outcomes(
    llm: LLM,
    cases: Sequence[Case],
    speculator: Speculator | None,
    conditions: Sequence[str],
) -> list[Outcome]:
    """Return what became of the requests; see `run`."""
    batches = [list(cases)] if TOGETHER in conditions else [[case] for case in cases]
    rounds = ROUNDS if PREEMPTED in conditions else None
    scheduler = llm.engine.scheduler
    before = scheduler.chunk, scheduler.slots
    scheduler.chunk = CHUNK if CHUNKED in conditions else WHOLE
    scheduler.slots = BATCH
    try:
        return [
            one for batch in batches for one in _finish(llm, batch, speculator, rounds)
        ]
    finally:
        scheduler.chunk, scheduler.slots = before


def _finish(
    llm: LLM,
    cases: Sequence[Case],
    speculator: Speculator | None,
    rounds: int | None,
) -> list[Outcome]:
    """Run the requests; no page is left after so many rounds."""
    requests = [
        llm.session.prepare(list(case.prompt), case.params)[0] for case in cases
    ]
    engine = llm.engine
    preempted: set[int] = set()
    with llm.session.locked(), _limit_kept(llm):
        for request in requests:
            engine.add(request, speculator)
        while not engine.idle:
            engine.step()
            waiting = engine.scheduler.waiting
            preempted |= {one.id for one in waiting if one.produced}
            if rounds is not None:
                rounds -= 1
            if rounds == 0:
                llm.target.cache_tokens = engine.load.kv_used
    return [
        (completed(one, list(one.unread), llm.method), one.id in preempted)
        for one in requests
    ]


@contextmanager
def _limit_kept(llm: LLM) -> Iterator[None]:
    """Undo changes of the limit of keys and values."""
    pool = llm.target.backend.pool
    before = None if pool is None else pool.limit
    try:
        yield
    finally:
        if pool is not None:
            pool.limit = before
