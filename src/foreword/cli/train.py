"""`foreword train`: options of a training, and how its course is shown. The work is in foreword.train."""

from __future__ import annotations

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

from foreword.cli import early, edge, options, show
from foreword.cli.data import Files, Target
from foreword.cli.options import examples
from foreword.errors import InvalidRequest
from foreword.train.students import STUDENTS, Student

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from foreword.train.figures import Report
    from foreword.train.log import Row

Made = TypeVar("Made", bound="DataclassInstance")
DATA, LEARNING, RUN = "Data", "Learning", "Run"

train = typer.Typer(name="train", no_args_is_help=True, rich_markup_mode="rich", help="Train a drafter for a target.")


def _option(
    panel: str,
    help: str,
    names: str = "",
    least: float | None = None,
    metavar: str = "N",
    check: Callable[[Any], None] = lambda _: None,
) -> typer.models.OptionInfo:
    callback = options.checked(check)
    return typer.Option(*names.split(), help=help, min=least, metavar=metavar, rich_help_panel=panel, callback=callback)


def _loss(name: str) -> None:
    early.known("loss", name, early.names("train.losses", "LOSSES"))


def _above_0(value: float) -> None:
    if not 0 < value < math.inf:
        raise InvalidRequest(f"learning_rate must be above 0, got {value}")


def _many() -> bool:
    """Started by `accelerate launch` or `torchrun`, which say so in the environment."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def _shared(
    *,
    target: Target = None,
    data: Files,
    out: Annotated[
        Path, _option(RUN, "Gets what was trained, checkpoints, log and report.", metavar="DIR", check=early.folder)
    ],
    resume: Annotated[bool, typer.Option("--resume", help="Go on where a run ended.", rich_help_panel=RUN)] = False,
    length: Annotated[int, _option(DATA, "Tokens in a block of records.", least=2)] = 512,
    held_out: Annotated[int, _option(DATA, "Records, about, to measure on.", least=0)] = 256,
    loss: Annotated[
        str, _option(LEARNING, "forward-kl, reverse-kl, tv, log-acceptance, hybrid …", metavar="NAME", check=_loss)
    ] = "hybrid",
    temperature: Annotated[float, _option(LEARNING, "What both laws are taken at.", metavar="T")] = 1.0,
    steps: Annotated[int, _option(LEARNING, "Steps of the optimiser.", least=1)] = 1000,
    batch: Annotated[int, _option(LEARNING, "Blocks in a forward, on each device.", least=1)] = 8,
    accumulate: Annotated[int, _option(LEARNING, "Forwards in a step.", least=1)] = 1,
    learning_rate: Annotated[
        float, _option(LEARNING, "At its height.", "--learning-rate --lr", metavar="X", check=_above_0)
    ] = 1e-3,
    warmup: Annotated[int, _option(LEARNING, "Steps until then.", least=0)] = 50,
    optimizer: Annotated[
        options.OPTIMIZERS, _option(LEARNING, "adamw, or muon: more in a step of many tokens.", metavar="NAME")
    ] = "adamw",
    seed: Annotated[int, _option(LEARNING, "Same seed, same draft.", least=0)] = 0,
    evaluate: Annotated[int, _option(RUN, "Steps between measurements.", least=1)] = 100,
    save: Annotated[int, _option(RUN, "Steps between checkpoints.", least=1)] = 200,
    prompts: Annotated[int, _option(RUN, "Held-out prompts for the report.", least=0)] = 64,
    bf16: Annotated[
        bool | None, typer.Option("--bf16/--no-bf16", help="Default: where fast.", rich_help_panel=RUN)
    ] = None,
    device: options.Device = "auto",
    as_json: options.AsJson = False,
) -> None:
    """The options that every training has."""


def _command(kind: type[Student]) -> Callable[..., None]:
    """The command that trains one kind of student: its own options and those that all have."""

    def command(**asked: Any) -> None:
        _train(kind, asked)

    hints = get_type_hints(kind)
    own = [
        Parameter(
            wish.name,
            Parameter.KEYWORD_ONLY,
            default=wish.default,
            annotation=Annotated[hints[wish.name], _option(kind.method, **wish.metadata, check=_check(wish.name))],
        )
        for wish in fields(kind)
    ]
    shared = signature(_shared, eval_str=True).parameters.values()
    vars(command)["__signature__"] = Signature([*shared, *own])
    command.__annotations__ = {option.name: option.annotation for option in (*shared, *own)}
    command.__doc__ = kind.summary
    return command


def _check(name: str) -> Callable[[Any], None]:
    """What a student begins with is a model or a head."""
    return early.model if name == "draft" else lambda _: None


for _kind in STUDENTS:
    _line = f"foreword train {_kind.method} --data answers.jsonl --out draft"
    train.command(
        _kind.method,
        epilog=examples(
            f"{_line} {_kind.example}".rstrip(), f"{_line} --target path/or/hub-id --steps 5000", f"{_line} --resume"
        ),
    )(_command(_kind))


def _train(kind: type[Student], asked: dict[str, Any]) -> None:
    """Every option has the name of what it sets."""
    from foreword.train.job import Job, run
    from foreword.train.memory import keep_freed
    from foreword.train.report import Questions
    from foreword.train.trainer import Recipe

    settled = {"data": tuple(asked["data"]), "many": _many(), "student": _filled(kind, asked)}
    parts = {"recipe": _filled(Recipe, asked), "questions": _filled(Questions, {"prompts": asked["prompts"]})}
    job = _filled(Job, asked | settled | parts)
    keep_freed()  # here and not in `run`: only a process that does nothing else should never give memory back
    with Course(asked["steps"], quiet=asked["as_json"]) as course:
        report = run(job, resume=asked["resume"], watch=course, note=edge.note)
    if report is not None:
        _write(report, asked["out"], asked["as_json"])


def _filled(kind: type[Made], values: dict[str, Any]) -> Made:
    """A dataclass from those of the values that it has fields for."""
    return kind(**{field.name: values[field.name] for field in fields(kind) if field.name in values})


class Course:
    """The course of a training on stderr: a bar on a terminal, a line now and then in a pipe."""

    def __init__(self, steps: int, *, quiet: bool = False) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self._console = show.stderr()
        self._bar = Progress(*columns, console=self._console, disable=quiet or not self._console.is_terminal)
        self._task = self._bar.add_task("", total=steps)
        self._said = ""
        self._tokens, self._since = 0, perf_counter()

    def __enter__(self) -> Course:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, row: Row) -> None:
        """Show one step."""
        self._tokens += row.tokens
        loss = "" if row.loss is None else f"loss {row.loss:.3f}  "
        if row.held_out:
            self._said = "  ".join(f"{name} {value:.3f}" for name, value in row.held_out.items())
            rate = self._tokens / (perf_counter() - self._since)
            if not self._console.is_terminal:
                edge.note(f"step {row.step}: {loss}held out: {self._said}  ({rate:,.0f} learnt tokens/s)")
        self._bar.update(self._task, completed=row.step, description=f"{loss}held out: {self._said}")


def _write(report: Report, out: Path, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(report.as_json()) + "\n")
        return
    from rich.table import Table

    table = Table("domain", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for head in ("temperature", "prompts", "tokens/pass", "guesses kept, by depth"):
        table.add_column(head, justify="left" if head.endswith("depth") else "right")
    for row in report.figures:
        kept = " ".join(f"{value.mid:.2f}" for value in row.acceptance)
        table.add_row(row.domain, f"{row.temperature:g}", str(row.prompts), f"{row.tokens_per_pass.mid:.2f}", kept)
    show.stdout().print(table)
    edge.note(f"{out} holds the draft; README.md there says more")
