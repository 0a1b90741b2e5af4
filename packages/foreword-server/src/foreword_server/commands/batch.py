"""`foreword batch`: answer a file of requests in OpenAI's batch format."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli.common import early, options, render, runtime
from foreword.cli.common.bundles import bundled
from foreword.options import DraftingOptions, ModelOptions, keywords
from foreword_server.commands.routing import refuse
from foreword_server.commands.serve import CacheTokens, Chunk, Slots

if TYPE_CHECKING:
    from foreword_server.batches.lines import Line, RequestFile
    from foreword_server.batches.parts import StoredAnswers
    from foreword_server.batches.results import Counts, Response, ResultFile

    Write = Callable[[Line, Response], None]

PANEL = "Ray"

Requests = Annotated[
    str,
    typer.Argument(
        metavar="REQUESTS",
        help="JSON lines: custom_id, method, url, body. A file, or a URL of fsspec.",
    ),
]
Answers = Annotated[
    str,
    typer.Argument(
        metavar="ANSWERS",
        help="File or URL to write; where it has answers already, the run goes on.",
    ),
]
Address = Annotated[
    str | None,
    options.option(PANEL, "--ray", "Ray cluster: local, auto or HOST:PORT.", "ADDRESS"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaOptions:
    """Options for the replicas on a Ray cluster."""

    replicas: Annotated[
        int | None,
        options.option(
            PANEL, "", "Models that answer. Default: one a node or GPU.", least=1
        ),
    ] = None
    replica_cpus: Annotated[
        int | None,
        options.option(
            PANEL, "", "CPUs of each replica. Default: as many as fit.", least=1
        ),
    ] = None
    replica_gpus: Annotated[
        float | None,
        options.option(
            PANEL, "", "GPUs of each replica. Default: 1 where there are GPUs.", least=0
        ),
    ] = None


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
    ray: Address = None,
    replicas: ReplicaOptions,
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
    if ray is not None:
        early.extra("ray", "ray", "pyarrow")
    else:
        reason = "without '--ray': one model answers here"
        refuse(replicas, reason, *keywords(replicas))
    from foreword_server.batches.copies import local_copies
    from foreword_server.batches.lines import RequestFile
    from foreword_server.batches.results import ResultFile

    scheduling = dict(slots=slots, chunk=chunk, cache_tokens=cache_tokens)
    values = scheduling | keywords(loading) | keywords(drafting) | {"draft": draft}
    with local_copies(requests, answers) as (request_path, answer_path, stored):
        read = RequestFile(request_path)
        read.check()
        with ResultFile(answer_path) as results:
            done = results.resume(read.lines)
            pending = [line for line in read.lines if line.custom_id not in done]
            old_count = len(done)
            seconds = 0.0
            if pending:
                work = _Work(read, pending, results, stored, quiet or as_json)
                if stored is not None:
                    stored.check()
                seconds = (
                    _answer(work, model, values)
                    if ray is None
                    else _answer_on_ray(work, model, values, ray, replicas)
                )
    _report(answers, results.counts, old_count, seconds, as_json=as_json, quiet=quiet)
    if results.counts.failed:
        raise typer.Exit(1)


def _report(
    answers: str,
    counts: "Counts",
    old_count: int,
    seconds: float,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Print the counts; `old_count`: answers of earlier runs."""
    summary = {
        "completed": counts.completed,
        "failed": counts.failed,
        "kept": old_count,
        "tokens": counts.tokens,
        "seconds": round(seconds, 3),
    }
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
    elif not quiet:
        before = f", {old_count} of them before" if old_count else ""
        speed = f" · {counts.tokens / seconds:.0f} tok/s" if seconds else ""
        runtime.note(
            f"{counts.completed} answers in {answers}{before}, {counts.failed} "
            f"failed · {counts.tokens} tokens{speed}"
        )


@dataclass(frozen=True, slots=True)
class _Work:
    """Requests without an answer, and the file that gets theirs."""

    read: "RequestFile"
    pending: "Sequence[Line]"
    results: "ResultFile"
    stored: "StoredAnswers | None"
    """Where answers are stored meanwhile; None: in their file alone."""
    quiet: bool

    def storing(self) -> AbstractContextManager[None]:
        """Store answers meanwhile, and show why some cannot be stored yet."""
        if self.stored is None:
            return nullcontext()
        return self.stored.storing(lambda error: runtime.note(str(error)))


def _answer(work: _Work, model: str | None, values: dict[str, Any]) -> float:
    """Load the model and answer all requests; return the seconds of answering."""
    with render.loading():
        from foreword_server.batches.loading import load
        from foreword_server.batches.run import AHEAD

        service = load(model, values)
        width = AHEAD * values["slots"]
    with _written(work) as write:
        began = perf_counter()
        asyncio.run(_run(service, work, write, width))
        return perf_counter() - began


async def _run(service: Any, work: _Work, write: "Write", width: int) -> None:
    from foreword_server.app import build_generation
    from foreword_server.batches.inside import Inside
    from foreword_server.batches.run import run

    inside = Inside(build_generation(service))

    async def answer(line: "Line") -> "Response":
        return await inside.post(line.url, work.read.body(line))

    try:
        await run(work.pending, answer, write, width)
    finally:
        await service.close()


def _answer_on_ray(
    work: _Work,
    model: str | None,
    values: dict[str, Any],
    address: str,
    replicas: ReplicaOptions,
) -> float:
    """Answer all requests on a Ray cluster; return the seconds since it was reached."""
    with render.loading("connecting to Ray"):
        from foreword_server.batches import on_ray
        from foreword_server.batches.loading import load

        cluster = on_ray.connected(address)
    with cluster:
        planned = on_ray.planned(values["slots"], *keywords(replicas).values())
        loads = partial(load, model, values)
        with _written(work) as write:
            began = perf_counter()
            on_ray.answer(work.read, work.pending, write, loads, planned)
            return perf_counter() - began


@contextmanager
def _written(work: _Work) -> "Iterator[Write]":
    """Show a bar; yield the function that writes an answer."""
    results, began = work.results, perf_counter()
    old_count = results.counts.completed
    with render.bar(quiet=work.quiet) as shown, work.storing():
        total = old_count + len(work.pending)
        task = shown.add_task("answers", total=total, completed=old_count)

        def write(line: "Line", response: "Response") -> None:
            results.write(line, response)
            speed = results.counts.tokens / (perf_counter() - began)
            shown.update(task, advance=1, description=f"{speed:,.0f} tok/s")

        yield write
