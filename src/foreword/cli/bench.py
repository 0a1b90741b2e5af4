"""`foreword bench`: options of a measurement. What is measured, and how, is said in foreword.bench."""

from __future__ import annotations

import json as encode
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from foreword.cli import early, edge, options, show
from foreword.cli.course import Course

if TYPE_CHECKING:
    from rich.table import Table

    from foreword.bench.run import Options

MEASURE, WRITE = "What is measured", "What is written"
ALONE = {"limit": {"context", "device"}, "rules": {"budget"}}
"""Options that go with one measurement alone."""
LIMITED = {"quick", "inflate", "model", "dtype", "json"}
"""What --limit takes besides."""
STDOUT = Path("-")
HEATS, BUDGETS = (0.3, 0.7, 1.0, 1.3), (4, 8, 16, 32, 64)
"""Temperatures and numbers of guesses that rules are compared at."""


def _option(
    help: str,
    *names: str,
    least: int | None = None,
    metavar: str = "N",
    check: Callable[[Any], None] = lambda _: None,
) -> typer.models.OptionInfo:
    callback = options.checked(check)
    return typer.Option(*names, help=help, min=least, metavar=metavar, rich_help_panel=MEASURE, callback=callback)


def _tried(file: Path | None) -> None:
    """Measuring takes minutes, so nobody should learn after it that its figures have no place to go."""
    if file != STDOUT:
        early.file(file)


def _rows(methods: list[str] | None) -> None:
    for name in methods or ():
        early.row(name)


def _engines(peers: list[str] | None) -> None:
    for name in peers or ():
        early.known("engine", name, (*early.names("bench.engines", "ENGINES"), "all"))


Quick = Annotated[bool, typer.Option("--quick", help="Few prompts: a minute on two cores.", rich_help_panel=MEASURE)]
Inflate = Annotated[
    options.SHAPES | None,
    _option("Give the family the cost of a llama-110m, llama-350m, llama-1b or llama-8b. Same text.", metavar="SHAPE"),
]
Temperatures = Annotated[
    list[float] | None, _option("May be given again. Default: 0 and 1.", "--temperature", "-t", metavar="T")
]
Rows = Annotated[
    list[str] | None,
    _option("A row of the table; may be given again. Default: all.", "--method", metavar="NAME", check=_rows),
]
Wide = Annotated[
    str | None,
    _option("What decides how much is guessed; docs/widths.md.", "--width", metavar="NAME", check=early.width),
]
Peers = Annotated[
    list[str] | None,
    _option(
        "Beside transformers also openvino, llamacpp or all; needs foreword\\[peers].",
        "--peers",
        metavar="NAME",
        check=_engines,
    ),
]
Kind = Annotated[Literal["in-domain", "out-of-domain"], _option("in-domain or out-of-domain.", metavar="KIND")]
Sources = Annotated[
    list[str] | None,
    _option("What a row drafts with instead of the draft model, as a datastore.", "--source", metavar="NAME=PATH"),
]
Few = Annotated[int | None, _option("Only so many prompts, of all kinds.", least=1)]
Length = Annotated[int, _option("At most this many new tokens in an answer.", least=1)]
Repeats = Annotated[int, _option("Times each prompt is run.", least=1)]
Seed = Annotated[int, _option("Of the first request; the others count on from it.", least=0)]
Json = Annotated[
    Path | None,
    typer.Option(help="Write the figures here; - is stdout.", rich_help_panel=WRITE, callback=options.checked(_tried)),
]
Limit = Annotated[
    bool, typer.Option("--limit", help="Forwards beside the limit of the memory instead.", rich_help_panel=MEASURE)
]
Where = Annotated[bool, typer.Option("--where", help="Show where a round goes instead.", rich_help_panel=WRITE)]
Rules = Annotated[
    bool, typer.Option("--rules", help="Rules beside each other, on equal guesses, instead.", rich_help_panel=MEASURE)
]
Batch = Annotated[
    str | None,
    _option("So many texts at a time instead, as 1,4,16,32: each method beside plain decoding.", metavar="N,N,…"),
]
Budgets = Annotated[list[int] | None, _option("With --rules: guesses in a round. Default: 4 to 64.", "--budget")]
Context = Annotated[int, _option("With --limit: tokens before the ones that are checked.", least=1)]
Device = Annotated[
    str, _option("With --limit: cpu, cuda, cuda:1 …; built and measured there.", metavar="DEVICE", check=early.device)
]
Plot = Annotated[
    Path | None,
    typer.Option(
        help="Draw them here (PNG; needs foreword\\[bench]).",
        rich_help_panel=WRITE,
        callback=options.checked(early.file),
    ),
]


def bench(
    *,
    quick: Quick = False,
    limit: Limit = False,
    rules: Rules = False,
    batch: Batch = None,
    where: Where = False,
    inflate: Inflate = None,
    temperature: Temperatures = None,
    method: Rows = None,
    width: Wide = None,
    peers: Peers = None,
    prompts: Kind = "in-domain",
    limit_prompts: Few = None,
    max_tokens: Length = 128,
    repeats: Repeats = 1,
    context: Context = 200,
    budget: Budgets = None,
    seed: Seed = 0,
    model: options.ModelName = None,
    draft: options.DraftName = None,
    source: Sources = None,
    dtype: options.DtypeName = "auto",
    device: Device = "cpu",
    json: Json = None,
    plot: Plot = None,
) -> None:
    """Measure every way to guess, plain decoding and transformers on this machine, in one interleaved run."""
    given = locals()
    _check(given)
    if limit:
        _limit(inflate, model, (dtype, device), json, quick=quick, context=context)
        return
    from foreword.bench.run import USUAL, Options

    same = ("quick", "inflate", "width", "prompts", "limit_prompts", "max_tokens", "repeats", "seed", "dtype", "draft")
    asked = Options(
        **{name: given[name] for name in same},
        temperatures=tuple(temperature) if temperature else HEATS if rules else USUAL,
        methods=tuple(method) if method else None,
        peers=tuple(peers or ()),
        target=model,
        sources=tuple(source or ()),
        plot=None if plot is None else str(plot),
    )
    if rules:
        _rules(asked, tuple(budget or BUDGETS), json)
    elif batch is not None:
        _together(asked, batch, json)
    else:
        _ways(asked, json, where=where)


def _check(given: dict[str, object]) -> None:
    """Raises InvalidRequest for options that what is measured does not take: none is passed over in silence."""
    from foreword.errors import InvalidRequest

    usual = {name: option.default for name, option in signature(bench).parameters.items()}
    asked = {name for name, default in usual.items() if given[name] != default}
    kinds = sorted(asked & {"limit", "rules", "batch", "where"})
    if len(kinds) > 1:
        raise InvalidRequest(f"{_spelt(kinds)} are measurements of their own; ask for one at a time")
    kind = kinds[0] if kinds else ""
    for other, own in ALONE.items():
        if other != kind and (strange := sorted(asked & own)):
            raise InvalidRequest(f"{_spelt(strange)} goes with {_spelt([other])}; leave it out, or ask for that")
    if kind == "limit" and (strange := sorted(asked - LIMITED - ALONE[kind] - {kind})):
        raise InvalidRequest(
            f"--limit measures forwards alone, so {_spelt(strange)} would change nothing; leave it out"
        )

    if kind == "batch" and "plot" in asked:
        raise InvalidRequest("--plot draws what is measured text by text, so it does not go with --batch; leave it out")


def _spelt(options: list[str]) -> str:
    return " and ".join("--" + name.replace("_", "-") for name in options)


def _ways(asked: Options, json: Path | None, *, where: bool) -> None:
    from foreword.bench.run import run
    from foreword.bench.where import table

    with Course(quiet=json == STDOUT) as course:
        report = run(asked, course)
    _write(report.as_json(), table(report) if where else report.table(), json)


def _rules(asked: Options, budgets: tuple[int, ...], json: Path | None) -> None:
    from foreword.bench.rules import as_json, compare, table

    with Course(quiet=json == STDOUT) as course:
        rows = compare(asked, budgets, course)
    _write(as_json(rows, asked), table(rows), json)


def _together(asked: Options, batch: str, json: Path | None) -> None:
    from foreword.bench.together import together
    from foreword.errors import InvalidRequest

    try:
        batches = [int(part) for part in batch.split(",")]
    except ValueError as error:
        raise InvalidRequest(f"cannot read '--batch' {batch!r}: it holds no numbers. Give some as 1,4,16,32") from error
    found = together(asked, batches, edge.note)
    _write(found.as_json(), found.table(), json)


def _limit(
    shape: str | None,
    model: str | None,
    kind: tuple[str, str],
    json: Path | None,
    *,
    quick: bool,
    context: int,
) -> None:
    """One object in the JSON where one model is asked for, a list of them otherwise."""
    from foreword.bench.limit import DEFAULT, FAMILY, Asked, limits, table

    shapes = (shape,) if shape else (FAMILY,) if model else DEFAULT
    found = limits(Asked(shapes, context, quick, model, *kind), edge.note)
    figures = [one.as_json() for one in found]
    _write(figures if len(found) > 1 else figures[0], table(found), json)


def _write(figures: object, table: Table, file: Path | None) -> None:
    """Figures to the file; the table to stdout, unless the figures are there."""
    found = encode.dumps(figures, indent=2) + "\n"
    if file == STDOUT:
        typer.echo(found, nl=False)
        return
    if file is not None:
        file.write_text(found, encoding="utf-8")
    show.stdout().print(table)
