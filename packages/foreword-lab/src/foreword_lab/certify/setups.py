"""What requests of equal texts run under, one setup a turn: batch, chunks of prompts,
budget, room for keys and values, and their form.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from foreword.model import Model
from foreword.model.executors.native.backend import NativeBackend
from foreword.model.executors.native.rows import Rows
from foreword_lab.certify.runs import CHUNKED, PREEMPTED, TOGETHER

ALONE = "alone"
ADAPTIVE = "adaptive budget"
INT8 = "int8 keys"


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to run the requests of a turn."""

    conditions: tuple[str, ...]
    nodes: int | None
    """Draft tokens a round; None = the default budget decides."""


SETUPS = (
    Setup((TOGETHER, CHUNKED), 2),
    Setup((ALONE,), 4),
    Setup((TOGETHER, PREEMPTED), 8),
    Setup((TOGETHER, INT8), 8),
    Setup((TOGETHER, ADAPTIVE), None),
    Setup((ALONE, CHUNKED), 8),
    Setup((TOGETHER,), 4),
)
"""In the order of turns; a quick run has the first two."""
NO_PAGES = "the backend has no pages to take away"
ADJACENT = "the backend reserves a request's pages when it starts"
NO_INT8 = "the backend has no other form of keys"


def usable(target: Model) -> tuple[list[Setup], dict[str, str]]:
    """Return the setups that a target has, and of other conditions why it has none."""
    pool = target.backend.pool
    absent = {}
    if pool is None:
        absent[PREEMPTED] = NO_PAGES
    elif pool.adjacent:
        absent[PREEMPTED] = ADJACENT
    if not isinstance(target.backend, NativeBackend) or target.kv is not None:
        absent[INT8] = NO_INT8
    setups = [one for one in SETUPS if not absent.keys() & {*one.conditions}]
    return setups, absent


@contextmanager
def keys_of(target: Model, conditions: Sequence[str]) -> Iterator[None]:
    """Hold keys and values as a setup wants them. No sequence may be open."""
    backend = target.backend
    if INT8 not in conditions or not isinstance(backend, NativeBackend):
        yield
        return
    held = backend.pool
    backend.quantize_kv()
    backend.pool.limit = held.limit
    try:
        yield
    finally:
        hold_in(backend, held)


def hold_in(backend: NativeBackend, pool: Rows) -> None:
    """Hold keys and values in this pool from now on. No sequence may be open."""
    model = backend.model
    backend.pool = pool
    pool.attach(model.layer[: model.layers])
    backend.describe(
        model,
        backend.words,
        backend.weight_bytes,
    )
