"""`foreword.toml`: how to draft for one target, found by `LLM`, the command line and
the server where the caller says nothing.
"""

import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from foreword.errors import InvalidRequest
from foreword.files import settings_path

BUNDLED = "bundled"
"""Name of the bundled target in the file."""
TABLE = "drafting"
KEYS: dict[str, type] = {
    "target": str,
    "draft": str,
    "method": str,
    "rule": str,
    "budget": str,
    "nodes": int,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftingFile:
    """The `[drafting]` table of a `foreword.toml`."""

    target: str
    """Folder or hub id that the rest holds for, or "bundled"."""
    draft: str | None = None
    method: str | None = None
    rule: str | None = None
    budget: str | None = None
    nodes: int | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings of `LLM` that the file names."""
        names = ("draft", "method", "rule", "budget", "nodes")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}


def settings_for(target: object) -> dict[str, Any]:
    """Return the settings that the file has for a target: a folder or hub id, None for
    the bundled one; empty if the file is absent or about another target.

    Raises InvalidRequest if the file is damaged.
    """
    file = settings_path()
    if file is None or not isinstance(target, str | Path | None):
        return {}
    content = read(file)
    name = BUNDLED if target is None else str(target)
    return content.settings if content.target == name else {}


def read(file: Path) -> DraftingFile:
    """Read a `foreword.toml`. Raises InvalidRequest that names file and fault."""
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _unusable(file, f"{error}", "Mend or remove it") from error
    if unknown := [name for name in values if name != TABLE]:
        raise _unusable(
            file, f"{unknown[0]!r} is unknown", f"It has one table, [{TABLE}]"
        )
    table = values.get(TABLE, {})
    for name, value in table.items():
        _check(file, name, value)
    if "target" not in table:
        raise _unusable(file, "it names no 'target'", f"Add it to [{TABLE}]")
    return DraftingFile(**table)


def _check(file: Path, name: str, value: object) -> None:
    if name not in KEYS:
        near = get_close_matches(name, KEYS, 1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Use {', '.join(KEYS)}"
        raise _unusable(file, f"the key {name!r} of [{TABLE}] is unknown", hint)
    if type(value) is not KEYS[name]:
        kind = "a number" if KEYS[name] is int else "a text"
        raise _unusable(file, f"{name!r} is {value!r}", f"Give {kind}")


def _unusable(file: Path, reason: str, fix: str) -> InvalidRequest:
    return InvalidRequest(f"cannot use {file}: {reason}. {fix}")
