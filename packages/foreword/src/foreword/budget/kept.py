"""What is known of methods, by machine and target, for new processes."""

import atexit
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from foreword.files import CachedValues

STEADY = 20.0
"""Texts in the mean of a kept value: a busy hour must not decide for others."""
EVERY = 256
"""Records between two writes of the file; the last ones are written at exit."""


def kind_name(rule: str, budget: str, sort: tuple[bool, bool], bits: int) -> str:
    """Return what the gain of a method depends on: the rule, the budget policy, how a
    request is sampled, (greedy, plain), and the bits of the number of requests.
    """
    greedy, plain = sort
    drawn = "sampled" if plain else "filtered"
    if greedy:
        drawn = "greedy"
    return f"{rule}, {budget}, {drawn}, batches below {2**bits}"


class KeptStates:
    """Values (`Choice.state`) by (kind of request, method) of a target here."""

    folder: ClassVar[Path | None] = None
    """Folder of the files; None = the cache."""
    opened: ClassVar["dict[object, KeptStates]"] = {}
    """One a file, in this process."""

    def __init__(self, values: CachedValues) -> None:
        self._values = values
        self._states: dict[str, dict[str, list[float]]] = {}
        """By kind, by method: the values, and the texts that they are the means of."""
        self._unsaved = 0
        for kind, states in (values.read() or {}).items():
            if isinstance(states, dict):
                self._states[kind] = {
                    name: known for name, known in states.items() if _is_known(known)
                }

    @classmethod
    def of(cls, key: Mapping[str, Any]) -> "KeptStates":
        """Return the values of a key: the machine, and what its forwards depend on."""
        values = CachedValues("methods", key, cls.folder)
        found = cls.opened.get(values.file)
        if found is None:
            found = cls.opened[values.file] = cls(values)
        return found

    def values(self, kind: str, name: str) -> list[float]:
        """Return what is known of a method; nothing if it is not known."""
        return self._states.get(kind, {}).get(name, [])[:-1]

    def record(self, kind: str, name: str, values: Sequence[float]) -> None:
        """Record what was measured of a method on a text."""
        if not all(math.isfinite(one) and one >= 0 for one in values):
            return
        known = self._states.setdefault(kind, {}).setdefault(name, [*values, 0.0])
        if len(known) != len(values) + 1:
            return
        known[-1] = min(known[-1] + 1, STEADY)
        for at, value in enumerate(values):
            known[at] += (value - known[at]) / known[-1]
        self._unsaved += 1
        if self._unsaved >= EVERY:
            self.save()

    def save(self) -> None:
        """Write the file, if there is anything new."""
        if self._unsaved:
            self._unsaved = 0
            self._values.write(self._states)


def _is_known(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) > 1
        and all(isinstance(one, int | float) and 0 <= one < math.inf for one in value)
    )


@atexit.register
def _save_all() -> None:
    for one in KeptStates.opened.values():
        one.save()
