"""`foreword bench`: options and output of the benchmarks in foreword.bench."""

from __future__ import annotations

import json as encode
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from foreword.bench.peers.engines import ALL, ENGINES, FASTER_WHISPER
from foreword.cli.common import early, measurements, options, render, runtime
from foreword.cli.common.progress import LineProgress

if TYPE_CHECKING:
    from rich.table import Table

    from foreword.bench.run import Options

MEASURE, OUTPUT = "Measurement", "Results"
STDOUT = Path("-")
TEMPERATURES, BUDGETS = (0.3, 0.7, 1.0, 1.3), (4, 8, 16, 32, 64)
"""Default temperatures and draft tokens per round of --rules."""
TOKENS = 128
"""Default maximum of new tokens in a text answer."""


def _option(
    help: str,
    *names: str,
    least: int | None = None,
    metavar: str = "N",
    check: Callable[[Any], None] = lambda _: None,
) -> typer.models.OptionInfo:
    callback = options.checked(check)
    return typer.Option(
        *names,
        help=help,
        min=least,
        metavar=metavar,
        rich_help_panel=MEASURE,
        callback=callback,
    )


def _check_output(file: Path | None) -> None:
    """Check the output file before a measurement of minutes starts."""
    if file != STDOUT:
        early.file(file)


def _rows(methods: list[str] | None) -> None:
    for name in methods or ():
        early.row(name)


def _engines(baselines: list[str] | None) -> None:
    for name in baselines or ():
        early.check_choice("engine", name, (*ENGINES, FASTER_WHISPER, ALL))


Quick = Annotated[
    bool,
    typer.Option(
        "--quick",
        help="Few prompts; about a minute on two cores.",
        rich_help_panel=MEASURE,
    ),
]
Inflate = Annotated[
    options.SHAPES | None,
    _option(
        "Simulated target size: llama-110m, llama-350m, llama-1b, llama-8b or t5-350m.",
        metavar="SHAPE",
    ),
]
Temperatures = Annotated[
    list[float] | None,
    _option(
        "Sampling temperature. Repeatable. Default: 0 and 1; for sound 0.",
        "--temperature",
        "-t",
        metavar="T",
    ),
]
Rows = Annotated[
    list[str] | None,
    _option(
        "Method to measure. Repeatable. Default: all.",
        "--method",
        metavar="NAME",
        check=_rows,
    ),
]
Budget = Annotated[
    str | None,
    _option(
        "Draft-token budget; see docs/budgets.md. Default: adaptive.",
        "--budget",
        metavar="NAME",
        check=early.budget,
    ),
]
Peers = Annotated[
    list[str] | None,
    _option(
        "Additional baselines, in the target's bits: openvino, llamacpp or all "
        "(foreword\\[peers]); "
        "for sound faster-whisper.",
        "--peers",
        metavar="NAME",
        check=_engines,
    ),
]
Kind = Annotated[
    str,
    _option(
        "Prompt set: in-domain, out-of-domain or a JSON-lines file.",
        metavar="KIND",
        check=early.prompts,
    ),
]
Sources = Annotated[
    list[str] | None,
    _option(
        "Input of a method, such as its datastore.", "--source", metavar="NAME=PATH"
    ),
]
Few = Annotated[
    int | None, _option("Maximum number of prompts, over all categories.", least=1)
]
Length = Annotated[
    int | None,
    _option(
        "Maximum number of new tokens per answer. Default: 128; for sound the context.",
        least=1,
    ),
]
Repeats = Annotated[int, _option("Runs per prompt or sound.", least=1)]
Seed = Annotated[int, _option("Seed of the first request; then consecutive.", least=0)]
Json = Annotated[
    Path | None,
    typer.Option(
        help="JSON file of the results; - is stdout.",
        rich_help_panel=OUTPUT,
        callback=options.checked(_check_output),
    ),
]
Limit = Annotated[
    bool,
    typer.Option(
        "--limit",
        help="Forward time against the memory-bandwidth limit instead.",
        rich_help_panel=MEASURE,
    ),
]
Where = Annotated[
    bool,
    typer.Option(
        "--where", help="Time per step of a round instead.", rich_help_panel=OUTPUT
    ),
]
Rules = Annotated[
    bool,
    typer.Option(
        "--rules",
        help="Verification rules on equal draft tokens instead.",
        rich_help_panel=MEASURE,
    ),
]
Batch = Annotated[
    str | None,
    _option("Batch sizes to compare instead, as 1,4,16,32.", metavar="N,N,…"),
]
Serve = Annotated[
    bool,
    typer.Option(
        "--serve",
        help="Servers under load, over HTTP, instead.",
        rich_help_panel=MEASURE,
    ),
]
Concurrency = Annotated[
    str,
    _option(
        "With --serve: requests at a time, as 1,4,16,32.",
        "--concurrency",
        metavar="N,N,…",
    ),
]
Requests = Annotated[
    int | None,
    _option(
        "With --serve: requests at each concurrency. Default: one a prompt.", least=1
    ),
]
NodeCounts = Annotated[
    list[int] | None,
    _option("With --rules: draft tokens per round. Default: 4 to 64.", "--nodes"),
]
Context = Annotated[
    int, _option("With --limit: context tokens before the forward.", least=1)
]
Device = Annotated[
    str,
    _option(
        "With --limit: device, as cpu, cuda, cuda:1.",
        metavar="DEVICE",
        check=early.device,
    ),
]
Task = Annotated[
    Literal["text", "asr"],
    typer.Option(
        "--task",
        help="Answers to prompts, or transcripts of sounds.",
        rich_help_panel=MEASURE,
    ),
]
Sounds = Annotated[
    Path | None,
    _option(
        "With --task asr: folder of .wav and .flac files.", "--audio", metavar="DIR"
    ),
]
Plot = Annotated[
    Path | None,
    typer.Option(
        help="PNG plot of the results; needs foreword\\[bench].",
        rich_help_panel=OUTPUT,
        callback=options.checked(early.file),
    ),
]


def bench(
    *,
    quick: Quick = False,
    limit: Limit = False,
    rules: Rules = False,
    batch: Batch = None,
    serve: Serve = False,
    concurrency: Concurrency = "1,4,16,32",
    requests: Requests = None,
    where: Where = False,
    task: Task = "text",
    audio: Sounds = None,
    inflate: Inflate = None,
    weights: options.WeightsName = None,
    offload_folder: options.OffloadFolder = None,
    temperature: Temperatures = None,
    method: Rows = None,
    budget: Budget = None,
    peers: Peers = None,
    prompts: Kind = "in-domain",
    limit_prompts: Few = None,
    max_tokens: Length = None,
    repeats: Repeats = 1,
    context: Context = 200,
    nodes: NodeCounts = None,
    seed: Seed = 0,
    model: options.ModelName = None,
    draft: options.DraftName = None,
    source: Sources = None,
    dtype: options.DtypeName = "auto",
    device: Device = "cpu",
    trust_remote_code: options.TrustRemoteCode = False,
    json: Json = None,
    plot: Plot = None,
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
    if limit:
        _limit(given)
    elif rules:
        _rules(_request(given), tuple(nodes or BUDGETS), json)
    elif batch is not None:
        _batch_sizes(_request(given), early.numbers("batch", batch), json)
    elif serve:
        _serving(
            _request(given), requests, early.numbers("concurrency", concurrency), json
        )
    elif audio is not None:
        _speech(_request(given), audio, max_tokens, json)
    else:
        _methods(_request(given), json, where=where)


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
