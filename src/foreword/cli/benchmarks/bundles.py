"""Options that several measurements of `foreword bench` take."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foreword.cli.common import bench_options, options, render
from foreword.cli.common.early import STDOUT

if TYPE_CHECKING:
    from rich.console import RenderableType

    from foreword.bench.run import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """The models that are measured."""

    model: options.ModelName = None
    draft: options.DraftName = None
    inflate: bench_options.Inflate = None
    weights: options.WeightsName = None
    dtype: options.DtypeName = "auto"
    trust_remote_code: options.TrustRemoteCode = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The prompts, and the answers to them."""

    quick: bench_options.Quick = False
    prompts: bench_options.Kind = "in-domain"
    limit_prompts: bench_options.Few = None
    temperature: bench_options.Temperatures = None
    max_tokens: bench_options.Length = None
    repeats: bench_options.Repeats = 1
    seed: bench_options.Seed = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Methods:
    """The methods that are compared."""

    method: bench_options.Rows = None
    budget: bench_options.Budget = None
    source: bench_options.Sources = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Where the results go."""

    json: bench_options.Json = None
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


def request(*bundles: Models | Answers | Methods, **more: Any) -> Options:
    """Return a benchmark's options; what was not given keeps its default."""
    from foreword.bench.run import Options

    values = {
        field.name: getattr(bundle, field.name)
        for bundle in bundles
        for field in fields(bundle)
    }
    values |= more
    for ours, theirs in RENAMED.items():
        if ours in values:
            values[theirs] = values.pop(ours)
    given: dict[str, Any] = {name: _plain(value) for name, value in values.items()}
    return Options(
        **{name: value for name, value in given.items() if value is not None}
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
