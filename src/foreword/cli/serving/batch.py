"""`foreword batch`: answer a file of requests in OpenAI's batch format."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli.common import early, options, render, runtime
from foreword.cli.common.bundles import bundled
from foreword.cli.serving.serve import CacheTokens, Chunk, Slots
from foreword.options import DraftingOptions, ModelOptions, keywords

if TYPE_CHECKING:
    from rich.progress import Progress

    from foreword.server.batches.lines import Line, RequestFile
    from foreword.server.batches.results import Response, ResultFile

AHEAD = 2
"""Requests in flight per slot, so that no slot is empty while an answer is written."""
QUEUE = 2**20
"""Answers that run or wait: no bound, because `width` requests are sent at a time."""

Requests = Annotated[
    Path,
    typer.Argument(
        metavar="REQUESTS",
        help="JSON lines: custom_id, method, url, body.",
        exists=True,
        dir_okay=False,
    ),
]
Answers = Annotated[
    Path,
    typer.Argument(
        metavar="ANSWERS",
        help="File to write; where it has answers already, the run goes on.",
        dir_okay=False,
    ),
]


@bundled
def batch(
    requests: Requests,
    answers: Answers,
    model: options.ModelName = None,
    *,
    slots: Slots = 32,
    chunk: Chunk = 512,
    cache_tokens: CacheTokens = None,
    draft: options.DraftName = None,
    loading: ModelOptions,
    drafting: DraftingOptions,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Answer a file of requests in OpenAI's batch format.

    A line is {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
    "body": {…}}, where the body is what the server takes; the other urls are
    /v1/completions, /v1/responses and /v1/messages. Every line is checked before the
    model loads. Answers are written as they end, one line each with its custom_id.

    Run the same command again after a kill or Ctrl-C: answered requests stay, errors
    are asked again, and no request is answered twice. The exit code is 1 if any failed.
    """
    early.extra("server", "fastapi", "prometheus_client", "python_multipart")
    from foreword.server.batches.lines import RequestFile
    from foreword.server.batches.results import ResultFile

    read = RequestFile(requests)
    read.check()
    scheduling = dict(slots=slots, chunk=chunk, cache_tokens=cache_tokens)
    given = scheduling | keywords(loading) | keywords(drafting) | {"draft": draft}
    with ResultFile(answers) as results:
        done = results.resume(read.lines)
        pending = [line for line in read.lines if line.custom_id not in done]
        counts = results.counts
        kept = len(done)
        seconds = 0.0
        if pending:
            work = _Work(read, pending, results, quiet or as_json)
            seconds = _answer(work, model, given)
    summary = {
        "completed": counts.completed,
        "failed": counts.failed,
        "kept": kept,
        "tokens": counts.tokens,
        "seconds": round(seconds, 3),
    }
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
    elif not quiet:
        before = f", {kept} of them before" if kept else ""
        speed = f" · {counts.tokens / seconds:.0f} tok/s" if seconds else ""
        runtime.note(
            f"{counts.completed} answers in {answers}{before}, {counts.failed} failed "
            f"· {counts.tokens} tokens{speed}"
        )
    if counts.failed:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Work:
    """Requests without an answer, and the file that gets theirs."""

    read: RequestFile
    pending: Sequence[Line]
    results: ResultFile
    quiet: bool


def _answer(work: _Work, model: str | None, given: dict[str, Any]) -> float:
    """Load the model and answer all requests; return the seconds of answering."""
    with render.loading():
        from foreword.api.llm import LLM
        from foreword.server.service import Service
        from foreword.server.settings import Settings

        llm = LLM(model, **given)
        width = AHEAD * given["slots"]
        settings = Settings(queue=QUEUE)
        service = Service(llm, settings, bundled=model is None)
    with render.bar(quiet=work.quiet) as shown:
        began = perf_counter()
        asyncio.run(_run(service, work, shown, width))
        return perf_counter() - began


async def _run(service: Any, work: _Work, shown: Progress, width: int) -> None:
    from foreword.server.app import build_generation
    from foreword.server.batches.inside import Inside
    from foreword.server.batches.run import run

    results, began = work.results, perf_counter()
    kept = results.counts.completed
    total = kept + len(work.pending)
    task = shown.add_task("answers", total=total, completed=kept)

    def write(line: Line, response: Response) -> None:
        results.write(line, response)
        speed = results.counts.tokens / (perf_counter() - began)
        shown.update(task, advance=1, description=f"{speed:,.0f} tok/s")

    inside = Inside(build_generation(service))
    try:
        await run(work.pending, work.read.body, inside.post, write, width)
    finally:
        await service.close()
