"""`foreword bench`: options and output of the benchmarks in foreword.bench."""

from __future__ import annotations

import json as encode
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foreword.cli.common import (
    bench_options,
    early,
    measurements,
    options,
    render,
    runtime,
)
from foreword.cli.common.bench_options import STDOUT
from foreword.cli.common.progress import LineProgress

if TYPE_CHECKING:
    from rich.table import Table

    from foreword.bench.run import Options

TEMPERATURES, BUDGETS = (0.3, 0.7, 1.0, 1.3), (4, 8, 16, 32, 64)
"""Default temperatures and draft tokens per round of --rules."""
TOKENS = 128
"""Default maximum of new tokens in a text answer."""


def bench(
    *,
    quick: bench_options.Quick = False,
    limit: bench_options.Limit = False,
    rules: bench_options.Rules = False,
    batch: bench_options.Batch = None,
    serve: bench_options.Serve = False,
    concurrency: bench_options.Concurrency = "1,4,16,32",
    requests: bench_options.Requests = None,
    where: bench_options.Where = False,
    task: bench_options.Task = "text",
    audio: bench_options.Sounds = None,
    inflate: bench_options.Inflate = None,
    weights: options.WeightsName = None,
    offload_folder: options.OffloadFolder = None,
    temperature: bench_options.Temperatures = None,
    method: bench_options.Rows = None,
    budget: bench_options.Budget = None,
    peers: bench_options.Peers = None,
    prompts: bench_options.Kind = "in-domain",
    limit_prompts: bench_options.Few = None,
    max_tokens: bench_options.Length = None,
    repeats: bench_options.Repeats = 1,
    context: bench_options.Context = 200,
    nodes: bench_options.NodeCounts = None,
    seed: bench_options.Seed = 0,
    model: options.ModelName = None,
    draft: options.DraftName = None,
    source: bench_options.Sources = None,
    dtype: options.DtypeName = "auto",
    device: bench_options.Device = "cpu",
    trust_remote_code: options.TrustRemoteCode = False,
    json: bench_options.Json = None,
    plot: bench_options.Plot = None,
    quiet: options.Quiet = False,
) -> None:
    """Measure all methods, plain decoding and transformers on this machine, in one
    interleaved run.
    """
    given = locals()
    measurements.check(
        given,
        {name: option.default for name, option in signature(bench).parameters.items()},
    )
    _measure(given)


def _measure(given: dict[str, Any]) -> None:
    """Run the measurement that the options choose."""
    json = given["json"]
    if given["limit"]:
        _limit(given)
    elif given["rules"]:
        _rules(_request(given), tuple(given["nodes"] or BUDGETS), json)
    elif given["batch"] is not None:
        _batch_sizes(_request(given), early.numbers("batch", given["batch"]), json)
    elif given["serve"]:
        _serving(
            _request(given),
            given["requests"],
            early.numbers("concurrency", given["concurrency"]),
            json,
        )
    elif given["audio"] is not None:
        _speech(_request(given), given["audio"], given["max_tokens"], json)
    else:
        _methods(_request(given), json, where=given["where"])


def _request(given: dict[str, Any]) -> Options:
    from foreword.bench.run import DEFAULT_TEMPERATURES, Options

    unchanged = (
        "quick",
        "inflate",
        "weights",
        "budget",
        "prompts",
        "limit_prompts",
        "repeats",
        "seed",
        "dtype",
        "device",
        "draft",
    )
    usual = (
        TEMPERATURES
        if given["rules"]
        else (0.0,)
        if given["audio"]
        else DEFAULT_TEMPERATURES
    )
    return Options(
        **{name: given[name] for name in (*unchanged, "trust_remote_code")},
        max_tokens=given["max_tokens"] or TOKENS,
        temperatures=tuple(given["temperature"] or usual),
        methods=tuple(given["method"]) if given["method"] else None,
        peers=tuple(given["peers"] or ()),
        target=given["model"],
        sources=tuple(given["source"] or ()),
        offload_folder=None
        if given["offload_folder"] is None
        else str(given["offload_folder"]),
        plot=None if given["plot"] is None else str(given["plot"]),
    )


def _methods(request: Options, json: Path | None, *, where: bool) -> None:
    from foreword.bench.round_profile import table
    from foreword.bench.run import run

    with LineProgress(quiet=json == STDOUT) as progress:
        report = run(request, progress)
    _write(report.as_json(), table(report) if where else report.table(), json)


def _rules(request: Options, budgets: tuple[int, ...], json: Path | None) -> None:
    from foreword.bench.rules import as_json, compare, table

    with LineProgress(quiet=json == STDOUT) as progress:
        rows = compare(request, budgets, progress)
    _write(as_json(rows, request), table(rows), json)


def _batch_sizes(request: Options, batches: list[int], json: Path | None) -> None:
    from foreword.bench.batch_sizes import together

    report = together(request, batches, runtime.note)
    _write(report.as_json(), report.table(), json)


def _serving(
    request: Options, requests: int | None, concurrencies: list[int], json: Path | None
) -> None:
    early.extra("server", "fastapi", "uvicorn", "prometheus_client")
    from foreword.bench.serving.run import serving

    report = serving(request, concurrencies, requests, runtime.note)
    _write(report.as_json(), report.table(), json)


def _speech(
    request: Options, folder: Path, max_tokens: int | None, json: Path | None
) -> None:
    from foreword.bench.speech import transcribing

    with LineProgress(quiet=json == STDOUT) as progress:
        report = transcribing(request, folder, max_tokens, progress)
    _write(report.as_json(), report.table(), json)


def _limit(given: dict[str, Any]) -> None:
    """Measure forwards; the JSON is one object for one model, and a list for
    several.
    """
    from foreword.bench.roofline.limit import (
        DEFAULT,
        FAMILY,
        LimitOptions,
        limits,
        table,
    )

    shape, model = given["inflate"], given["model"]
    shapes = (shape,) if shape else (FAMILY,) if model else DEFAULT
    settings = {
        name: given[name]
        for name in ("context", "quick", "dtype", "device", "trust_remote_code")
    }
    measured = limits(
        LimitOptions(shapes=shapes, target=model, **settings), runtime.note
    )
    figures = [one.as_json() for one in measured]
    _write(figures if len(measured) > 1 else figures[0], table(measured), given["json"])


def _write(figures: object, table: Table, file: Path | None) -> None:
    """Write the results to the file, and the table to stdout unless the results are
    there.
    """
    text = encode.dumps(figures, indent=2) + "\n"
    if file == STDOUT:
        typer.echo(text, nl=False)
        return
    if file is not None:
        file.write_text(text, encoding="utf-8")
    render.stdout().print(table)
