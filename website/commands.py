"""Pages of the command line, from its own help: one for each command of `foreword`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import typer
from rich.text import Text
from typer.core import TyperCommand
from typer.main import get_command

from foreword.cli.app import app
from website.markdown import cell

OPTIONS = "Options"
"""Panel of options that name none."""


def write(folder: Path) -> None:
    """Write `commands.md`, which lists the commands, and a page for each of them."""
    group = get_command(app)
    context = typer.Context(group, info_name="foreword")
    lines = ["# Commands", "", *_about(group), *_commands(group, context)]
    _save(folder / "commands.md", lines)
    for name, command in members(group, context):
        _save(folder / "commands" / f"{name}.md", _page(command, name, context))


def members(group, context) -> Iterator[tuple[str, TyperCommand]]:
    """Yield the commands of a group that its help lists, by name."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if not command.hidden:
            yield name, command


def _page(command, name: str, parent, depth: int = 1) -> Iterator[str]:
    context = typer.Context(command, info_name=name, parent=parent)
    yield f"{'#' * depth} `{context.command_path}`"
    yield ""
    yield from _about(command)
    yield "```console"
    yield f"$ {context.command_path} {' '.join(command.collect_usage_pieces(context))}"
    yield "```"
    yield ""
    yield from _examples(command)
    yield from _options(command, context)
    if hasattr(command, "commands"):
        for below, inner in members(command, context):
            yield from _page(inner, below, context, depth + 1)


def _about(command) -> Iterator[str]:
    yield _plain(inspect.cleandoc(command.help or ""))
    yield ""


def _commands(group, context) -> Iterator[str]:
    """Yield the commands by the panels of the help."""

    def panel(named) -> str:
        return named[1].rich_help_panel or "Commands"

    listed = sorted(members(group, context), key=panel)
    for title, commands in groupby(listed, key=panel):
        yield f"## {title}"
        yield ""
        yield "| command | |"
        yield "|---|---|"
        for name, command in commands:
            short = _plain(command.get_short_help_str(limit=200))
            yield f"| [`{name}`](commands/{name}.md) | {cell(short)} |"
        yield ""


def _examples(command) -> Iterator[str]:
    """Yield the examples at the end of a help."""
    if command.epilog:
        title, *lines = Text.from_markup(command.epilog).plain.splitlines()
        yield f"**{title}**"
        yield ""
        yield "```console"
        yield from (line.strip() for line in lines)
        yield "```"
        yield ""


def _options(command, context) -> Iterator[str]:
    """Yield a table for each panel of options."""
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            title = getattr(parameter, "rich_help_panel", None) or OPTIONS
            panels.setdefault(title, []).append(record)
    for title, records in panels.items():
        yield f"| {title} | |"
        yield "|---|---|"
        for name, meaning in records:
            yield f"| `{cell(name)}` | {cell(_plain(_escaped(meaning)))} |"
        yield ""


def _plain(text: str) -> str:
    """Return a text of the help without the marks of its colours."""
    return Text.from_markup(text).plain


def _escaped(meaning: str) -> str:
    """Return the help of an option whose default, in brackets, is text."""
    return meaning.replace("  [", r"  \[")


def _save(page: Path, lines) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
