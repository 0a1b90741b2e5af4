"""The file that trials of masks are kept in: JSON lines, what they depend on first, then a line for each.

Knows masks and values; knows nothing about who tries them, or how.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreword.draft.layers import Mask
from foreword.errors import InvalidRequest


@dataclass(slots=True)
class Tried:
    """A mask, and what it was worth by ever more texts."""

    mask: Mask
    values: list[float]
    whole: bool
    """By all texts: it was not given up."""

    @property
    def value(self) -> float:
        """The most exact one."""
        return self.values[-1]


class TrialsFile:
    """Trials on disk. A line that was cut off by a kill is forgotten."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """`about` are the plain values that trials depend on.

        Where the file is there, its trials are read; raises InvalidRequest where they are about something else.
        """
        self.path, self.tried = path, list[Tried]()
        self.prices: dict[str, Any] | None = None
        """What halves cost, if that is kept: worth is comparable only under the same prices."""
        about = json.loads(json.dumps(about))
        if not path.exists():
            self._write({"about": about})
            return
        lines = self._lines()
        before = lines[0].get("about") if lines else None
        if not isinstance(before, dict):
            raise _none_in(path)
        other = [name for name in about if before.get(name) != about[name]]
        if other:
            raise InvalidRequest(
                f"the trials in {path} were made with another {', '.join(other)}; say what was said then, or name "
                "another file with --out"
            )
        for line in lines[1:]:
            if "prices" in line:
                self.prices = line["prices"]
            elif "mask" in line:
                self.tried.append(Tried(frozenset(line["mask"]), line["values"], line["whole"]))

    @property
    def best(self) -> Tried | None:
        """Of those that were not given up."""
        return next(iter(self.ranked), None)

    @property
    def ranked(self) -> list[Tried]:
        """Those that were not given up, best first, each mask once."""
        whole = {one.mask: one for one in self.tried if one.whole}
        return sorted(whole.values(), key=lambda one: -one.value)

    def keep(self, prices: dict[str, Any]) -> None:
        """Write down what halves cost."""
        self.prices = prices
        self._write({"prices": prices})

    def add(self, found: Tried) -> None:
        """Write down a trial."""
        self.tried.append(found)
        self._write({"mask": sorted(found.mask), "values": found.values, "whole": found.whole})

    def _write(self, line: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _lines(self) -> list[dict[str, Any]]:
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.path.write_text(whole, encoding="utf-8")
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            raise _none_in(self.path) from error
        if not all(isinstance(line, dict) for line in lines):
            raise _none_in(self.path)
        return lines


def _none_in(path: Path) -> InvalidRequest:
    return InvalidRequest(f"{path} holds no trials; remove it, or name another file with --out")
