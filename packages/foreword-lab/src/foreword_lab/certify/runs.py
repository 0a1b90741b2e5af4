"""Requests through the engine, with a drafter, a batch and a size of prompt chunks."""

from collections.abc import Sequence

from foreword.api.llm import LLM
from foreword.api.session import completed
from foreword.engine.speculator import Speculator
from foreword.types import Completion
from foreword_lab.certify.cases import Case

WHOLE, CHUNK = 512, 7
"""Tokens. Read of a prompt in one round: more than any of these prompts, and few enough
that each takes several rounds.
"""
BATCH = 32
"""Sequences. Batch of samples that are drawn together."""


TOGETHER, CHUNKED = "beside others", "prompt in chunks"
"""Conditions that requests run under: all at once, and with prompts read in parts."""


def run(
    llm: LLM,
    cases: Sequence[Case],
    speculator: Speculator | None = None,
    conditions: Sequence[str] = (),
) -> list[Completion]:
    """Return the completions of the requests; without a speculator, by plain
    decoding.
    """
    batches = [list(cases)] if TOGETHER in conditions else [[case] for case in cases]
    scheduler = llm.engine.scheduler
    before = scheduler.chunk, scheduler.slots
    scheduler.chunk = CHUNK if CHUNKED in conditions else WHOLE
    scheduler.slots = BATCH
    try:
        answers = [one for batch in batches for one in _finish(llm, batch, speculator)]
    finally:
        scheduler.chunk, scheduler.slots = before
    return answers


def _finish(
    llm: LLM, cases: Sequence[Case], speculator: Speculator | None
) -> list[Completion]:
    requests = [
        llm.session.prepare(list(case.prompt), case.params)[0] for case in cases
    ]
    with llm.session.locked():
        for request in requests:
            llm.engine.add(request, speculator)
        while not llm.engine.idle:
            llm.engine.step()
    return [completed(one, list(one.unread), llm.method) for one in requests]
