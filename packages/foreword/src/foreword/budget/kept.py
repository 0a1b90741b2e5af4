"""Mean speeds of methods over plain decoding, kept by machine and
target, so that a new process does not learn them anew.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from foreword.files import CachedValues

STEADY = 20.0
"""Texts whose mean a kept speed is: a program that slows the machine for a while must
not decide for the next process.
"""
EVERY = 256
"""Records between two writes of the file; the last ones are written at exit."""


def kind_name(rule: str, budget: str, sort: tuple[bool, bool], bits: int) -> str:
    """Return what a speed depends on besides the method: the rule, the budget policy,
    how a request is sampled, (greedy, plain), and the bits of the number of sequences.
    """
    greedy, plain = sort
    drawn = "sampled" if plain else "filtered"
    if greedy:
        drawn = "greedy"
    return f"{rule}, {budget}, {drawn}, batches below {2**bits}"


class KeptSpeeds:
    """Speeds over plain decoding by (kind of request, method), of one target on one
    machine.
    """

    folder: ClassVar[Path | None] = None
    """Folder of the files; None = the cache."""
    opened: ClassVar[dict[object, KeptSpeeds]] = {}
    """One a file, in this process."""

    def __init__(self, values: CachedValues) -> None:
        self._values = values
        self._paces: dict[str, dict[str, list[float]]] = {}
        """By kind, by method: the speed, and the texts that it is the mean of."""
        self._unsaved = 0
        for kind, paces in (values.read() or {}).items():
            if isinstance(paces, dict):
                self._paces[kind] = {
                    name: known for name, known in paces.items() if _is_known(known)
                }

    @classmethod
    def of(cls, key: Mapping[str, Any]) -> KeptSpeeds:
        """Return the speeds kept under a key: the machine, and what the speed of the
        target's forwards depends on.
        """
        values = CachedValues("speeds", key, cls.folder)
        found = cls.opened.get(values.file)
        if found is None:
            found = cls.opened[values.file] = cls(values)
        return found

    def pace(self, kind: str, name: str) -> float | None:
        """Return the speed over plain decoding, or None if it is not known."""
        known = self._paces.get(kind, {}).get(name)
        return known[0] if known else None

    def record(self, kind: str, name: str, pace: float, texts: int = 1) -> None:
        """Record a speed that was measured on some texts."""
        if not (math.isfinite(pace) and pace > 0):
            return
        known = self._paces.setdefault(kind, {}).setdefault(name, [pace, 0.0])
        known[1] = min(known[1] + texts, STEADY)
        known[0] += (pace - known[0]) * min(texts / known[1], 1.0)
        self._unsaved += 1
        if self._unsaved >= EVERY:
            self.save()

    def save(self) -> None:
        """Write the file, if there is anything new."""
        if self._unsaved:
            self._unsaved = 0
            self._values.write(self._paces)


@dataclass(frozen=True, slots=True)
class KeptPace:
    """The kept speeds of one method under one rule and budget policy."""

    speeds: KeptSpeeds
    rule: str
    budget: str
    method: str

    def pace(self, sort: tuple[bool, bool], bits: int) -> float | None:
        """Return the speed over plain decoding for requests of a sort, (greedy, plain),
        in batches below 2**bits, or None if it is not known.
        """
        return self.speeds.pace(self._kind(sort, bits), self.method)

    def record(self, sort: tuple[bool, bool], bits: int, pace: float) -> None:
        """Record a speed that was measured on one text."""
        self.speeds.record(self._kind(sort, bits), self.method, pace)

    def _kind(self, sort: tuple[bool, bool], bits: int) -> str:
        # apart from what a choice among methods measures, which is of other texts
        return f"{kind_name(self.rule, self.budget, sort, bits)}, alone"


def _is_known(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(one, int | float) and 0 < one < math.inf for one in value)
    )


@atexit.register
def _save_all() -> None:
    for one in KeptSpeeds.opened.values():
        one.save()
