"""Pages are short; those of methods have one shape, and options as in the code."""

import inspect
import re
import sys
from dataclasses import MISSING, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from foreword import LLM, SamplingParams
from foreword.cli.app import app
from foreword.draft.ensemble.recipe import shipped
from foreword.registry import METHODS, OWN_METHODS, PLAIN
from foreword_train.registry import TRAIN_OPTIONS

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = ["When it pays", "Use", "Options", "How it works", "Limits", "Papers"]
METHOD_PAGES = sorted(set(OWN_METHODS) - {PLAIN})
METHOD_LINES = 60
LINES = 150
RECORDS = ("notes", "api")
"""Folders of dated records and of generated pages: as long as they need to be."""
HEADER = ["option", "of", "default", "meaning"]
NO_VALUE = (None, "")
"""Defaults that a table calls `none`."""


class Option(NamedTuple):
    """A row of a table of options."""

    name: str
    owner: str
    default: str


def page(name: str) -> str:
    return (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def options(text: str) -> list[Option]:
    """Return the rows of the table of options."""
    lines = iter(text.splitlines())
    for line in lines:
        if cells(line) == HEADER:
            break
    next(lines, None)
    rows = []
    for line in lines:
        if not line.startswith("|"):
            break
        name, owner, default, _ = cells(line)
        rows.append(Option(name.strip("`"), owner.strip("`"), default))
    return rows


@cache
def program() -> Any:
    return typer.main.get_command(app)


def of_command(words: str) -> dict[str, object]:
    """Return the options of a command and their defaults."""
    command = program()
    for word in words.split()[1:]:
        command = command.commands[word]
    return {
        option: MISSING if parameter.required else parameter.default
        for parameter in command.params
        for option in parameter.opts
    }


def of_class(kind: type) -> dict[str, object]:
    """Return what the making of an object takes, and the defaults."""
    signature = inspect.signature(kind.__init__)
    return {name: parameter.default for name, parameter in signature.parameters.items()}


def of_llm(method: str) -> dict[str, object]:
    """Return what `LLM` takes; a draft where the method needs one of its own."""
    found = of_class(LLM)
    kind = METHODS[method]
    if kind.about.needs and shipped(kind, method) is None:
        found["draft"] = MISSING
    return found


def of_request() -> dict[str, object]:
    return {one.name: one.default for one in fields(SamplingParams)}


def known(method: str, owner: str) -> dict[str, object]:
    """Return the options that an owner has, and their defaults."""
    if owner.startswith("foreword "):
        return of_command(owner)
    if owner == "LLM":
        return of_llm(method)
    if owner == "SamplingParams":
        return of_request()
    module = sys.modules[METHODS[method].__module__]
    return of_class(getattr(module, owner))


def agrees(said: str, default: object) -> bool:
    """Return whether a table's default is the code's."""
    if said == "required":
        return default is MISSING
    if said == "none":
        return default in NO_VALUE
    if said == "off":
        return default is False
    return float(said) == default


@pytest.mark.parametrize("name", METHOD_PAGES)
def test_method_pages_have_the_same_sections(name):
    found = re.findall(r"^## (.+)$", page(name), re.MULTILINE)
    assert found == SECTIONS


@pytest.mark.parametrize("name", METHOD_PAGES)
def test_method_pages_are_named_after_the_method(name):
    assert page(name).startswith(f"# `{name}`: ")


@pytest.mark.parametrize("name", METHOD_PAGES)
def test_method_pages_fit_two_screens(name):
    assert len(page(name).splitlines()) <= METHOD_LINES


@pytest.mark.parametrize("name", METHOD_PAGES)
def test_options_exist_with_the_defaults_of_their_table(name):
    rows = options(page(name))
    assert rows
    wrong = []
    for row in rows:
        found = known(name, row.owner)
        if row.name not in found:
            wrong.append(f"{row.owner} has no {row.name}")
        elif not agrees(row.default, found[row.name]):
            wrong.append(f"{row.name}: {found[row.name]}")
    assert wrong == []


@pytest.mark.parametrize("name", METHOD_PAGES)
def test_options_of_a_trained_method_are_all_listed(name):
    """The options that belong to one method are the panel of its command."""
    training = [row for row in options(page(name)) if "train" in row.owner]
    listed = {row.name for row in training}
    for owner in {row.owner for row in training}:
        missing = own_options(owner) - listed
        assert missing <= {"--draft"}


def own_options(owner: str) -> set[str]:
    """Return the options of a training command that belong to its method."""
    name = owner.split()[-1]
    for kind in TRAIN_OPTIONS:
        if name in (kind.command, kind.method):
            return {"--" + one.name.replace("_", "-") for one in fields(kind)}
    raise AssertionError(f"no such command: {owner}")


def test_every_page_of_methods_is_of_a_method():
    found = {path.stem for path in (DOCS / "methods").glob("*.md")}
    assert found == set(METHOD_PAGES)


def test_pages_are_short():
    found = {
        path.relative_to(DOCS).as_posix(): count
        for path in sorted(DOCS.rglob("*.md"))
        if path.relative_to(DOCS).parts[0] not in RECORDS
        and (count := len(path.read_text("utf-8").splitlines())) > LINES
    }
    assert found == {}
