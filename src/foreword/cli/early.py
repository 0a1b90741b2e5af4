"""What is checked of a command's options before torch is imported, which takes seconds: names, devices, files.

Knows where the registries are, and reads their names from their source; knows nothing about what is behind a name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from foreword.disk import makeable, writable
from foreword.errors import InvalidRequest, ModelError, UnknownMethod

DEVICES = ("auto", "cpu", "cuda", "mps", "xpu", "hpu", "npu", "mtia", "xla")
"""Kinds of devices that torch may have. Whether this machine has one is found out when it is used."""


@cache
def names(module: str, registry: str) -> Any:
    """The value that the source of a module of ours gives a name: of a table its keys, of a Literal its values.

    Read as text, for importing it would load torch. Nothing where there is no source, so nothing is refused then.
    """
    spec = find_spec(f"foreword.{module.partition('.')[0]}")
    source = Path(spec.origin) if spec and spec.origin else Path()
    if "." in module:
        source = source.with_name(module.partition(".")[2] + ".py")
    try:
        body = ast.parse(source.read_text(encoding="utf-8")).body
    except OSError:
        return ()
    for line in body:
        places = [line.target] if isinstance(line, ast.AnnAssign) else getattr(line, "targets", [])
        if any(isinstance(place, ast.Name) and place.id == registry for place in places):
            return _value(getattr(line, "value", None))
    return ()


def _value(node: Any) -> Any:
    if isinstance(node, ast.Dict):
        return tuple(key.value for key in node.keys if isinstance(key, ast.Constant))
    return ast.literal_eval(node.slice if isinstance(node, ast.Subscript) else node)


def known(kind: str, name: str, there: Iterable[str]) -> None:
    """Raise UnknownMethod, with the nearest name, unless there is such a name, or none can be read."""
    there = tuple(there)
    if there and name not in there:
        near = get_close_matches(name, there, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownMethod(f"there is no {kind} {name!r}.{hint} Choose one of {', '.join(there)}")


def method(name: str | None) -> None:
    """A drafting method, or one that joins others, written like a call."""
    if name is not None:
        _called(name, (*names("draft", "METHODS"), *(one.name for one in entry_points(group="foreword.methods"))))


def _called(name: str, there: tuple[str, ...]) -> None:
    written = re.fullmatch(r"\s*([\w-]+)\s*(?:\((.*)\))?\s*", name)
    if written is None or (written[2] or "").count("(") != (written[2] or "").count(")"):
        raise InvalidRequest(f"cannot read the method {name!r}; write a name, or one that joins others: name(one, two)")
    known("method", written[1], there)
    for part in re.findall(r"[^(),]+", written[2] or ""):
        if part.strip():
            known("method", part.strip(), there)


def rule(name: str) -> None:
    """A verification rule, or what it shall keep."""
    known("verification rule", name, (*names("verify", "RULES"), *names("verify", "Keeps")))


def width(name: str | None) -> None:
    """What decides how much is guessed, by its name or NAME:PLACE."""
    if name is not None:
        kind, _, source = name.partition(":")
        known("width", kind, names("width", "WIDTHS"))
        there(source or None)


def nodes(count: int | None) -> None:
    """A fixed number of guesses."""
    from foreword.params import SamplingParams

    SamplingParams(nodes=count)


def device(name: str) -> None:
    """A device as torch spells it."""
    if not re.fullmatch(rf"(?:{'|'.join(DEVICES)})(?::\d+)?", name):
        raise InvalidRequest(f"there is no device {name!r}; write auto, cpu, cuda, or one by its number: cuda:1")


def there(*places: str | Path | None) -> None:
    """Files or folders."""
    for place in places:
        if place is not None and not Path(place).expanduser().exists():
            raise InvalidRequest(f"there is no file or folder {place}")


def model(source: str | None) -> None:
    """A folder or a hub id. What can only be a folder must be there."""
    if source is not None and source.startswith(("/", ".", "~")) and not Path(source).expanduser().exists():
        raise ModelError(f"cannot load a model from {source!r}: there is no such folder. Give one, or a hub id")


def data(files: Iterable[Path] | None) -> None:
    """Files to read from."""
    for file in files or ():
        if not file.is_file():
            raise InvalidRequest(f"there is no file {file}; give JSON lines, each a record")


def folder(place: Path) -> None:
    """A folder that can be made, or written to."""
    makeable(place)


def new(place: Path | None) -> None:
    """A folder that can be made and is not there yet."""
    if place is not None and place.exists():
        raise InvalidRequest(f"{place} exists already; remove it or name another folder")
    if place is not None:
        makeable(place)


def file(place: Path | None) -> None:
    """A file that can be written."""
    if place is not None:
        writable(place)


def temperature(value: float) -> None:
    """As a request checks it."""
    from foreword.params import SamplingParams

    SamplingParams(temperature=value)


def rows() -> tuple[str, ...]:
    """The rows that a benchmark knows, but for methods that join others."""
    ways = ("generate", "assisted", "lookup")
    engines = ("transformers", *names("bench.engines", "ENGINES"))
    outside = (f"{engine}.{way}" for engine in engines for way in ways)
    return (*names("draft", "METHODS"), "plain", "oracle", "all", *outside)


def row(name: str) -> None:
    """A row of the benchmark's table."""
    if "(" in name:
        method(name)
    else:
        known("method", name, rows())
