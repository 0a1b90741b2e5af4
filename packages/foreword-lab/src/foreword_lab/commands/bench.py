"""`foreword bench`: options and output of the benchmarks in foreword_lab.bench, with a
command for each measurement.
"""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import RenderableType
from typer.core import TyperGroup

from foreword.cli.common import early, options, render, runtime
from foreword.cli.common.bundles import bundled
from foreword.cli.common.early import STDOUT
from foreword.cli.common.options import examples
from foreword.cli.common.progress import LineProgress
from foreword.errors import InvalidRequest
from foreword.files import check_writable
from foreword_lab.commands import bench_options as ours

if TYPE_CHECKING:
    from foreword_lab.bench.run import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The models that are measured."""

    model: options.ModelName = None
    draft: options.DraftName = None
    inflate: ours.Inflate = None
    weights: options.WeightsName = None
    dtype: options.DtypeName = "auto"
    trust_remote_code: options.TrustRemoteCode = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The prompts, and the answers to them."""

    quick: ours.Quick = False
    prompts: ours.Kind = "in-domain"
    limit_prompts: ours.Few = None
    temperature: ours.Temperatures = None
    max_tokens: ours.Length = None
    repeats: ours.Repeats = 1
    seed: ours.Seed = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Methods:
    """The methods that are compared."""

    method: ours.Rows = None
    budget: ours.Budget = None
    source: ours.Sources = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Where the results go."""

    json: ours.Json = None
    quiet: options.Quiet = False

    @property
    def silent(self) -> bool:
        """Whether JSON has stdout, so that nothing else may be drawn."""
        return self.json == STDOUT

    def write(self, figures: object, table: RenderableType) -> None:
        """Write the figures to the file, and the table to stdout unless the figures are
        there.
        """
        if not render.written(figures, self.json):
            render.stdout().print(table)


def request(*bundles: Models | Answers | Methods, **more: Any) -> "Options":
    """Return a benchmark's options; what was not given keeps its default."""
    from foreword_lab.bench.run import Options

    values = {
        field.name: getattr(bundle, field.name)
        for bundle in bundles
        for field in fields(bundle)
    }
    values |= more
    for name, field_name in RENAMED.items():
        if name in values:
            values[field_name] = values.pop(name)
    settings: dict[str, Any] = {name: _plain(value) for name, value in values.items()}
    return Options(
        **{name: value for name, value in settings.items() if value is not None}
    )


RENAMED = {
    "model": "target",
    "temperature": "temperatures",
    "method": "methods",
    "source": "sources",
}
"""Options of the command line that stand for one of several, or for the target."""


def _plain(value: object) -> object:
    if isinstance(value, list):
        return tuple(value) or None
    return str(value) if isinstance(value, Path) else value


DEFAULT = "text"
"""The measurement of `foreword bench` alone."""
FORMER = {
    "--limit": "limit",
    "--rules": "rules",
    "--batch": "batch 1,4,16,32",
    "--serve": "serve",
}
"""Options of earlier versions that have become measurements of their own."""


class BenchGroup(TyperGroup):
    """Runs the default measurement where none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default before options; refuse the spellings of earlier versions."""
        named = bool(args) and (args[0] in self.commands or args[0] in HELP)
        if not named:
            for arg in args:
                _check_former(arg.partition("=")[0])
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


HELP = ("-h", "--help")


def _check_former(option: str) -> None:
    """Raise InvalidRequest for an option that has become a measurement."""
    if option in FORMER:
        raise InvalidRequest(
            f"cannot use {option!r}: it is a measurement of its own. Run `foreword "
            f"bench {FORMER[option]}`"
        )


bench = typer.Typer(
    name="bench",
    cls=BenchGroup,
    rich_markup_mode="rich",
    help="Measure all methods, plain decoding and transformers on this machine, in one "
    "interleaved run; or what a command says. Without one, it is [bold]text[/bold].",
)


def _check_peers(peers: object, device: str) -> None:
    """Raise InvalidRequest for other engines beside a device: they run on the CPU."""
    if peers and device != "cpu":
        raise InvalidRequest(
            "cannot use '--peers' with '--device': other engines are measured on the "
            "CPU. Leave one out"
        )


RULE_TEMPERATURES, BUDGETS = (0.3, 0.7, 1.0, 1.3), (4, 8, 16, 32, 64)
"""Default temperatures and draft tokens per round of rules."""


@bench.command(
    epilog=examples(
        "foreword bench --quick --json quick.json",
        "foreword bench --inflate llama-350m --plot 350m.png",
        "foreword bench --method lm --method auto --where",
    )
)
@bundled
def text(
    *,
    models: Models,
    answers: Answers,
    methods: Methods,
    peers: ours.Peers = None,
    device: ours.Device = "cpu",
    offload_folder: options.OffloadFolder = None,
    where: ours.Where = False,
    plot: ours.Plot = None,
    results: Results,
) -> None:
    """Measure all methods, plain decoding and transformers in one interleaved run."""
    _check_peers(peers, device)
    setup = request(
        models,
        answers,
        methods,
        peers=peers,
        device=device,
        offload_folder=offload_folder,
        plot=plot,
    )
    from foreword_lab.bench.round_profile import table
    from foreword_lab.bench.run import run

    with LineProgress(quiet=results.silent) as progress:
        report = run(setup, progress)
    results.write(report.as_json(), table(report) if where else report.tables())


@bench.command(
    epilog=examples(
        "foreword bench batch 1,4,16,32 --method lm",
        "foreword bench batch 1,8 --inflate llama-350m --json batches.json",
        "foreword bench batch 1,32 --method lm --beside --at-least 0.98,0.95",
    )
)
@bundled
def batch(
    sizes: ours.Sizes = "1,4,16,32",
    *,
    models: Models,
    answers: Answers,
    methods: Methods,
    peers: ours.Peers = None,
    device: ours.Device = "cpu",
    beside: ours.Beside = False,
    at_least: ours.AtLeast = None,
    results: Results,
) -> None:
    """Measure several requests at a time, by the size of the batch."""
    counts = early.numbers("the sizes", sizes)
    least = None if at_least is None else early.ratios("'--at-least'", at_least)
    if least and len(least) > 1 and not beside:
        raise InvalidRequest(
            "cannot use two numbers of '--at-least' without '--beside': the second one "
            "is of what it measures. Give one number, or '--beside' too"
        )
    _check_peers(peers, device)
    setup = request(models, answers, methods, peers=peers, device=device)
    from foreword_lab.bench.batches.together import together

    report = together(setup, counts, runtime.note, beside=beside)
    results.write(report.as_json(), report.table())
    slow = [row.shown for row in report.rows if least and row.below(least)]
    for line in slow:
        runtime.note(f"slower than asked for: {line}")
    if slow:
        raise typer.Exit(1)


@bench.command(
    epilog=examples(
        "foreword bench serve --concurrency 1,8 --quick",
        "foreword bench serve --model path/or/hub-id --peers llamacpp",
    )
)
@bundled
def serve(
    *,
    models: Models,
    answers: Answers,
    concurrency: ours.Concurrency = "1,4,16,32",
    requests: ours.Requests = None,
    peers: ours.Peers = None,
    device: ours.Device = "cpu",
    results: Results,
) -> None:
    """Measure servers under load, over HTTP."""
    counts = early.numbers("'--concurrency'", concurrency)
    early.extra("serve", "fastapi", "uvicorn", "prometheus_client")
    _check_peers(peers, device)
    setup = request(models, answers, peers=peers, device=device)
    from foreword_lab.bench.serving.run import serving

    report = serving(setup, counts, requests, runtime.note)
    results.write(report.as_json(), report.table())


@bench.command(
    epilog=examples(
        "foreword bench rules --nodes 8 --nodes 32",
        "foreword bench rules -t 1 --limit-prompts 12 --json rules.json",
    )
)
@bundled
def rules(
    *,
    models: Models,
    answers: Answers,
    methods: Methods,
    nodes: ours.NodeCounts = None,
    results: Results,
) -> None:
    """Compare verification rules on equal draft tokens."""
    more = {} if answers.temperature else {"temperature": [*RULE_TEMPERATURES]}
    setup = request(models, answers, methods, **more)
    from foreword_lab.bench.rules import as_json, compare, table

    with LineProgress(quiet=results.silent) as progress:
        rows = compare(setup, tuple(nodes or BUDGETS), progress)
    results.write(as_json(rows, setup), table(rows))


@bench.command(
    epilog=examples(
        "foreword bench limit",
        "foreword bench limit --inflate llama-350m --weights int4 --context 200,8192",
        "foreword bench limit --inflate llama-1b --device cuda",
    )
)
@bundled
def limit(
    *,
    model: options.ModelName = None,
    inflate: ours.Inflate = None,
    context: ours.Context = "200",
    weights: options.WeightsName = None,
    plot: ours.Plot = None,
    quick: ours.Quick = False,
    dtype: options.DtypeName = "auto",
    device: ours.Device = "cpu",
    trust_remote_code: options.TrustRemoteCode = False,
    results: Results,
) -> None:
    """Measure forwards and prompts against what memory and instructions allow.

    The least time of a forward is that of its bytes at the measured bandwidth, or of
    its multiply-adds at the measured peak of the instructions for this form of weights.
    The JSON is one object for one model and context, and a list for several.
    """
    from foreword_lab.bench.roofline.limit import (
        DEFAULT,
        FAMILY,
        LimitOptions,
        limits,
        table,
    )

    if plot is not None:
        early.extra("plots", "matplotlib")
        check_writable(plot)
    shapes = (inflate,) if inflate else (FAMILY,) if model else DEFAULT
    setup = LimitOptions(
        shapes=shapes,
        target=model,
        contexts=tuple(early.numbers("--context", context)),
        weights=weights,
        quick=quick,
        dtype=dtype,
        device=device,
        trust_remote_code=trust_remote_code,
    )
    measured = limits(setup, runtime.note)
    if plot is not None:
        from foreword_lab.bench.roofline.plot import draw

        draw(measured, plot)
    figures = [one.as_json() for one in measured]
    results.write(figures if len(measured) > 1 else figures[0], table(measured))
