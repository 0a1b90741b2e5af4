"""File of the trials of masks: JSON lines, first the settings they depend on, then one
line per trial.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foreword.draft.self_speculative.layers import Mask
from foreword.errors import InvalidRequest


@dataclass(slots=True)
class Tried:
    """A trial: a mask and its value over increasing numbers of texts."""

    mask: Mask
    values: list[float]
    whole: bool
    """Whether the last value is over all texts, so that the trial was not pruned."""

    @property
    def value(self) -> float:
        """The value over the most texts."""
        return self.values[-1]


class TrialsFile:
    """Trials on disk. An incomplete last line, left by a kill, is dropped."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """`about` are the plain values that trials depend on.

        An existing file is read. Raises InvalidRequest if its trials depend on other
        values.
        """
        self.path, self.tried = path, list[Tried]()
        self.prices: dict[str, Any] | None = None
        """Costs of halves, if recorded: values of masks are comparable only under the
        same costs.
        """
        about = json.loads(json.dumps(about))
        if not path.exists():
            self._write({"about": about})
            return
        lines = self._lines()
        before = lines[0].get("about") if lines else None
        if not isinstance(before, dict):
            raise _no_trials(path)
        other = [name for name in about if before.get(name) != about[name]]
        if other:
            raise InvalidRequest(
                f"cannot resume from {path}: its trials were made with another "
                f"{', '.join(other)}. Use the options of "
                "that run, or name another file with '--out'"
            )
        for line in lines[1:]:
            if "prices" in line:
                self.prices = line["prices"]
            elif "mask" in line:
                self.tried.append(
                    Tried(frozenset(line["mask"]), line["values"], line["whole"])
                )

    @property
    def best(self) -> Tried | None:
        """The best trial that was not pruned."""
        return next(iter(self.ranked), None)

    @property
    def ranked(self) -> list[Tried]:
        """The trials that were not pruned, best first, each mask once."""
        whole = {one.mask: one for one in self.tried if one.whole}
        return sorted(whole.values(), key=lambda one: -one.value)

    def keep(self, prices: dict[str, Any]) -> None:
        """Append the costs of halves."""
        self.prices = prices
        self._write({"prices": prices})

    def add(self, trial: Tried) -> None:
        """Append a trial."""
        self.tried.append(trial)
        self._write(
            {"mask": sorted(trial.mask), "values": trial.values, "whole": trial.whole}
        )

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
            raise _no_trials(self.path) from error
        if not all(isinstance(line, dict) for line in lines):
            raise _no_trials(self.path)
        return lines


def _no_trials(path: Path) -> InvalidRequest:
    return InvalidRequest(
        f"cannot resume from {path}: it holds no trials. Remove it, or name another "
        "file with '--out'"
    )
