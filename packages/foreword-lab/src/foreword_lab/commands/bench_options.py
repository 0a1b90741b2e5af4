"""Options of `foreword bench`: help, metavar and check."""

from pathlib import Path
from typing import Annotated, Any

import typer

from foreword.cli.common import early, options
from foreword.registry import METHODS
from foreword_lab.bench.peers.engines import ALL, COMPILED, ENGINES, MODES

MEASURE, OUTPUT = "Measurement", "Results"


def _option(
    help: str, names: str = "", metavar: str = "N", **more: Any
) -> typer.models.OptionInfo:
    return options.option(MEASURE, names, help, metavar, **more)


def row_names() -> tuple[str, ...]:
    """Return the rows of the benchmark, without combinations of methods."""
    engines = ("transformers", *ENGINES)
    baselines = [f"{engine}.{mode}" for engine in engines for mode in MODES]
    return (*METHODS, "plain", "oracle", "all", *baselines, COMPILED)


def check_row(name: str) -> None:
    """Check a row of the benchmark's table."""
    if "(" in name:
        early.method(name)
    else:
        early.check_choice("method", name, row_names())


def _engine(name: str) -> None:
    early.check_choice("engine", name, (*ENGINES, ALL))


Quick = Annotated[
    bool,
    options.option(MEASURE, "--quick", "Few prompts; about a minute on two cores."),
]
Inflate = Annotated[
    options.SHAPES | None,
    _option(
        "Simulated target size: llama-110m, llama-350m, llama-1b or llama-8b.",
        metavar="SHAPE",
    ),
]
Temperatures = Annotated[
    list[float] | None,
    _option(
        "Sampling temperature. Repeatable. Default: 0 and 1; of rules 0.3 to 1.3, of "
        "sounds 0.",
        "--temperature -t",
        metavar="T",
    ),
]
Rows = Annotated[
    list[str] | None,
    _option(
        "Method to measure. Repeatable. Default: all.",
        "--method",
        metavar="NAME",
        check=early.each(check_row),
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
        "Additional baselines on the target's GGUF file or bits: openvino, llamacpp or "
        "all (foreword\\[peers]).",
        "--peers",
        metavar="NAME",
        check=early.each(_engine),
    ),
]
Kind = Annotated[
    str,
    _option(
        "Prompt set: in-domain, out-of-domain, a .jsonl or .txt file, or one of "
        "./prompts ($FOREWORD_PROMPTS), as spec-bench.",
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
        "Maximum number of new tokens per answer. Default: 128; of sounds the context.",
        least=1,
    ),
]
Repeats = Annotated[int, _option("Runs per prompt or sound.", least=1)]
Seed = Annotated[int, _option("Seed of the first request; then consecutive.", least=0)]
Json = Annotated[
    Path | None,
    options.option(
        OUTPUT, "--json", "JSON file of the results; - is stdout.", check=early.output
    ),
]
Where = Annotated[
    bool, options.option(OUTPUT, "--where", "Print the time per step of a round.")
]
Concurrency = Annotated[
    str, _option("Requests at a time.", "--concurrency", metavar="N,N,…")
]
Requests = Annotated[
    int | None, _option("Requests at each concurrency. Default: one a prompt.", least=1)
]
NodeCounts = Annotated[
    list[int] | None,
    _option("Draft tokens per round. Repeatable. Default: 4 to 64.", "--nodes"),
]
Context = Annotated[
    str,
    _option(
        "Context tokens before the forward; a list, as 200,8192, measures each.",
        metavar="N,N,…",
    ),
]
Device = Annotated[
    str,
    _option(
        "Device of our methods and transformers, as cpu, cuda, cuda:1.",
        metavar="DEVICE",
        check=early.device,
    ),
]
Beside = Annotated[
    bool,
    options.option(
        MEASURE,
        "--beside",
        "Measure beside a program that keeps one core busy as well.",
    ),
]
AtLeast = Annotated[
    str | None,
    _option(
        "Fail where a method is slower than X times plain; Y: beside a busy program.",
        "--at-least",
        metavar="X[,Y]",
    ),
]
Sizes = Annotated[
    str, typer.Argument(help="Batch sizes to compare, as 1,4,16,32.", metavar="N,N,…")
]
Plot = Annotated[
    Path | None,
    options.option(
        OUTPUT,
        "--plot",
        "PNG plot of the results; needs foreword\\[plots].",
        check=early.file,
    ),
]
