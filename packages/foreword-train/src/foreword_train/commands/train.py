"""`foreword train`: options, progress and output of the trainings in foreword.train."""

import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from inspect import Parameter, Signature, signature
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from foreword.cli.common import early, options, render, runtime
from foreword.cli.common.options import examples
from foreword.cli.common.tables import BARE, Column, Table
from foreword.errors import InvalidRequest
from foreword.files import check_creatable
from foreword_train.commands.data import Files
from foreword_train.registry import LOSSES, TRAIN_OPTIONS, TrainOptions

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from foreword_train.log import Row
    from foreword_train.report.metrics import Metrics, TrainReport

Dataclass = TypeVar("Dataclass", bound="DataclassInstance")
FIRST_ROWS = 2
"""Rows of a log whose times tell how long a step takes."""
DATA = "Data"
OPTIMIZATION = "Optimization"
RUN = "Run"

train = typer.Typer(
    name="train",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Train a drafter for a target.",
)


def _option(
    panel: str, help: str, names: str = "", metavar: str = "N", **more: Any
) -> typer.models.OptionInfo:
    return options.option(panel, names, help, metavar, **more)


def _loss(name: str) -> None:
    LOSSES.check(name)


def _above_0(value: float) -> None:
    if not 0 < value < math.inf:
        raise InvalidRequest(
            f"cannot use '--learning-rate' {value}: it must be above 0. Give one such "
            "as 1e-3"
        )


def _is_distributed() -> bool:
    """Return whether `accelerate launch` or `torchrun` started several processes."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


Out = Annotated[
    Path,
    _option(
        RUN,
        "Folder for the drafter, checkpoints, log, report.",
        metavar="DIR",
        check=check_creatable,
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume", help="Continuation from the last checkpoint.", rich_help_panel=RUN
    ),
]
Length = Annotated[int, _option(DATA, "Tokens per block of packed records.", least=2)]
HeldOut = Annotated[int, _option(DATA, "Held-out records, at most a tenth.", least=0)]
LossName = Annotated[
    str,
    _option(
        OPTIMIZATION,
        "Loss: forward-kl, reverse-kl, tv, log-acceptance, hybrid …",
        metavar="NAME",
        check=_loss,
    ),
]
LossTemperature = Annotated[
    float,
    _option(
        OPTIMIZATION, "Temperature of both distributions in the loss.", metavar="T"
    ),
]
Steps = Annotated[int, _option(OPTIMIZATION, "Number of optimizer steps.", least=1)]
Batch = Annotated[
    int, _option(OPTIMIZATION, "Blocks per forward, on each device.", least=1)
]
Accumulate = Annotated[
    int, _option(OPTIMIZATION, "Forwards per optimizer step.", least=1)
]
LearningRate = Annotated[
    float,
    _option(
        OPTIMIZATION,
        "Peak learning rate.",
        "--learning-rate --lr",
        metavar="X",
        check=_above_0,
    ),
]
Warmup = Annotated[
    int, _option(OPTIMIZATION, "Warmup steps until the peak learning rate.", least=0)
]
Optimizer = Annotated[
    options.OPTIMIZERS,
    _option(
        OPTIMIZATION, "Optimizer: adamw, or muon for large batches.", metavar="NAME"
    ),
]
Seed = Annotated[
    int, _option(OPTIMIZATION, "Training seed; same seed, same drafter.", least=0)
]
Evaluate = Annotated[int, _option(RUN, "Steps between evaluations.", least=1)]
Save = Annotated[int, _option(RUN, "Steps between checkpoints.", least=1)]
Prompts = Annotated[
    int | None,
    _option(
        RUN,
        "Held-out prompts for the report. Default: up to 64, by training length.",
        least=0,
    ),
]
Bf16 = Annotated[
    bool | None,
    options.option(
        RUN, "--bf16/--no-bf16", "Training in bfloat16. Default: where fast."
    ),
]


def _shared(
    *,
    target: options.ModelName = None,
    data: Files,
    out: Out,
    resume: Resume = False,
    length: Length = 512,
    held_out: HeldOut = 256,
    loss: LossName = "hybrid",
    temperature: LossTemperature = 1.0,
    steps: Steps = 1000,
    batch: Batch = 8,
    accumulate: Accumulate = 1,
    learning_rate: LearningRate = 1e-3,
    warmup: Warmup = 50,
    optimizer: Optimizer = "adamw",
    seed: Seed = 0,
    evaluate: Evaluate = 100,
    save: Save = 200,
    prompts: Prompts = None,
    bf16: Bf16 = None,
    device: options.Device = "auto",
    trust_remote_code: options.TrustRemoteCode = False,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Declare the options that every training has."""


def _command(kind: type[TrainOptions]) -> Callable[..., None]:
    """Return the command that trains one kind of drafter, with all its options."""

    def command(**values: Any) -> None:
        _train(kind, values)

    hints = get_type_hints(kind)
    parameters = [
        Parameter(
            option.name,
            Parameter.KEYWORD_ONLY,
            default=option.default,
            annotation=Annotated[
                hints[option.name],
                _option(kind.method, **option.metadata, **_naming(option.name)),
            ],
        )
        for option in fields(kind)
    ]
    shared = signature(_shared, eval_str=True).parameters.values()
    vars(command)["__signature__"] = Signature([*shared, *parameters])
    command.__annotations__ = {
        option.name: option.annotation for option in (*shared, *parameters)
    }
    command.__doc__ = kind.summary
    return command


def _naming(name: str) -> dict[str, Any]:
    """Return names and check of `draft`, a model or a head to start from, else none."""
    is_draft = name == "draft"
    return {"names": "--draft -d", "check": early.model} if is_draft else {}


for _kind in TRAIN_OPTIONS:
    _name = _kind.command or _kind.method
    _line = f"foreword train {_name} --data answers.jsonl --out draft"
    train.command(
        _name,
        epilog=examples(
            f"{_line} {_kind.example}".rstrip(),
            f"{_line} --model path/or/hub-id --steps 5000",
            f"{_line} --resume",
        ),
    )(_command(_kind))


def _train(kind: type[TrainOptions], values: dict[str, Any]) -> None:
    """Run a training. Every option has the name of the dataclass field that it sets."""
    from foreword_train.devices import keep_freed
    from foreword_train.job import Job, run
    from foreword_train.report.measure import Questions
    from foreword_train.trainer import TrainingConfig

    derived = {
        "data": tuple(values["data"]),
        "many": _is_distributed(),
        "options": _filled(kind, values),
    }
    parts = {
        "recipe": _filled(TrainingConfig, values),
        "questions": _filled(Questions, {"prompts": values["prompts"]}),
    }
    job = _filled(Job, values | derived | parts)
    # not in `run`: only a process that does nothing else may keep freed memory
    keep_freed()
    with TrainProgress(values["steps"], quiet=values["as_json"]) as progress:
        report = run(job, resume=values["resume"], watch=progress, note=runtime.note)
    if report is not None:
        _write(report, values["out"], values["as_json"])


def _filled(kind: type[Dataclass], values: dict[str, Any]) -> Dataclass:
    """Return a dataclass filled with the values that it has fields for."""
    return kind(
        **{
            field.name: values[field.name]
            for field in fields(kind)
            if field.name in values
        }
    )


class TrainProgress:
    """Progress of a training on stderr: a bar on a terminal, lines in a pipe."""

    def __init__(self, steps: int, *, quiet: bool = False) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
        )
        self._console = render.notes()
        self._bar = Progress(
            *columns,
            console=self._console,
            disable=quiet or not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=steps)
        self._scores = ""
        self._tokens, self._since = 0, perf_counter()
        self._steps = steps
        self._rows: list[float] = []  # when the first ones came, in seconds

    def __enter__(self) -> "TrainProgress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, row: "Row") -> None:
        """Show one step."""
        self._tokens += row.tokens
        self._estimate(row)
        loss = "" if row.loss is None else f"loss {row.loss:.3f}  "
        if row.held_out:
            self._scores = "  ".join(
                f"{name} {value:.3f}" for name, value in row.held_out.items()
            )
            rate = self._tokens / (perf_counter() - self._since)
            if not self._console.is_terminal:
                runtime.note(
                    f"step {row.step}: {loss}held out: {self._scores}  ({rate:,.0f} "
                    "trained tokens/s)"
                )
        self._bar.update(
            self._task,
            completed=row.step,
            description=f"{loss}held out: {self._scores}",
        )

    def _estimate(self, row: "Row") -> None:
        """After the first step of this run, say how long the others take."""
        if len(self._rows) == FIRST_ROWS or self._console.is_terminal:
            return
        self._rows.append(perf_counter())
        if len(self._rows) == FIRST_ROWS:
            seconds = self._rows[1] - self._rows[0]
            minutes = seconds * (self._steps - row.step) / 60
            runtime.note(
                f"step {row.step} took {seconds:,.1f} s: the others take about "
                f"{minutes:,.0f} minutes, with evaluations more"
            )


def _write(report: "TrainReport", out: Path, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(report.as_json()) + "\n")
        return

    def accepted(row: "Metrics") -> str:
        return " ".join(f"{value.mid:.2f}" for value in row.acceptance)

    columns = (
        Column["Metrics"]("domain", lambda row: row.domain, justify="left"),
        Column["Metrics"]("temperature", lambda row: f"{row.temperature:g}"),
        Column["Metrics"]("prompts", lambda row: str(row.prompts)),
        Column["Metrics"]("tokens/pass", lambda row: f"{row.tokens_per_pass.mid:.2f}"),
        Column("accepted, by depth", accepted, justify="left"),
    )
    render.stdout().print(Table(report.metrics, columns, look=BARE))
    runtime.note(f"{out} holds the drafter; README.md there describes it")
