"""Whether a row of a forward has the same bits alone, among others and in a tree, where
the backend promises it.

Texts hide most rounding; a drafted text needs every bit of it.
"""

from collections.abc import (
    Callable,
    Iterator,
    Sequence,
)
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.api.llm import LLM
from foreword.model import (
    Mode,
    Model,
    Read,
)
from foreword_lab.certify.cases import (
    TEXTS,
    encoded,
)
from foreword_lab.certify.report import Check
from foreword_lab.certify.setups import (
    INT8,
    keys_of,
    usable,
)

ROWS = 80
"""Tokens. Length of the text: more than a page."""
SIZES = (2, 5, 17, ROWS)
"""Rows. Forwards that the text is read in."""
SHARES = (1, 2, 3, 5)
"""Rows of each sequence in a forward of several."""
PARENTS = (-1, -1, 1, 1, 3, 3)
ACCEPTED = (1, 3, 5)
"""A draft tree, and its nodes that are the text, each after a sibling."""
NAME = "same bits"
EQUAL = "native", "graph"
"""Backends that promise them."""

Logits = Float[Tensor, "rows vocab"]
Reading = Callable[[Model, Sequence[int], list[int]], list[Logits]]
"""Reads a text under some ids; returns the logits of each of its rows, or several."""


def bits_check(llm: LLM, *, quick: bool) -> list[Check]:
    """Return the check, in a list that is empty where no backend promises equal bits.

    A quick one reads no keys in int8.
    """
    target = llm.target
    if not target.capability.backend.startswith(EQUAL):
        return []
    ids = [llm.session.prepare("a", None)[0].id for _ in SHARES]
    text = [token for prompt in TEXTS for token in encoded(llm, prompt)][:ROWS]
    _, absent = usable(target)
    forms = [()] if quick or INT8 in absent else [(), (INT8,)]
    compared, different = 0, {}
    with llm.session.locked(), target.single_torch_thread():
        for form in forms:
            with keys_of(target, form):
                (alone,) = in_chunks(1)(target, ids, text)
                for name, read in _readings(target).items():
                    compared += len(text)
                    row = _first_difference(alone, read(target, ids, text))
                    if row is not None:
                        different[", ".join((name, *form))] = row
    return [_outcome(compared, different, len(text))]


def _outcome(
    compared: int,
    different: dict[str, int],
    rows: int,
) -> Check:
    evidence = {"rows of the text": rows, "first row that differs": different}
    if different:
        what = f"rows differ from those alone: {', '.join(different)}"
        return Check(NAME, "differs", what, evidence)
    what = f"{compared:,} rows beside others and in trees have the bits of rows alone"
    return Check(NAME, "consistent", what, evidence)


def _readings(target: Model) -> dict[str, Reading]:
    readings: dict[str, Reading] = {
        f"forwards of {size} rows": in_chunks(size) for size in SIZES
    }
    readings["several sequences"] = several
    if target.mode is Mode.TREE:
        readings["trees"] = in_trees
    return readings


def in_chunks(size: int) -> Reading:
    """Return what reads a text in forwards of so many rows."""

    def read(
        target: Model,
        ids: Sequence[int],
        text: list[int],
    ) -> list[Logits]:
        with _opened(target, ids[:1], len(text)):
            parts = [
                target.read([_chain(ids[0], start, text[start : start + size])])
                for start in range(0, len(text), size)
            ]
        return [torch.cat(parts)]

    return read


def several(
    target: Model,
    ids: Sequence[int],
    text: list[int],
) -> list[Logits]:
    """Read a text in several sequences at once, each in steps of its own."""
    logits: list[list[Logits]] = [[] for _ in ids]
    with _opened(target, ids, len(text)):
        for step in range(len(text) // SHARES[0]):
            reads = {}
            for number, share in enumerate(SHARES):
                start = step * share
                if start < len(text):
                    part = text[start : start + share]
                    reads[number] = _chain(ids[number], start, part)
            rows = target.read([*reads.values()])
            counts = [read.keep for read in reads.values()]
            for number, part in zip(reads, rows.split(counts), strict=True):
                logits[number].append(part)
    return [torch.cat(parts) for parts in logits]


def in_trees(
    target: Model,
    ids: Sequence[int],
    text: list[int],
) -> list[Logits]:
    """Read a text as accepted branches of draft trees."""
    step = 1 + len(ACCEPTED)
    logits = []
    with _opened(target, ids[:1], len(text) + len(PARENTS)):
        for start in range(0, len(text) - step + 1, step):
            nodes = [text[0]] * len(PARENTS)
            for node, token in zip(ACCEPTED, text[start + 1 :], strict=False):
                nodes[node] = token
            tokens = [text[start], *nodes]
            read = Read(ids[0], start, tokens, [*PARENTS], keep=len(tokens))
            rows = target.read([read])
            logits.append(rows[[0, *(node + 1 for node in ACCEPTED)]])
            target.move(ids[0], [start + 1 + node for node in ACCEPTED], start + 1)
    return [torch.cat(logits)]


def _chain(id: int, start: int, tokens: list[int]) -> Read:
    return Read(id, start, tokens, keep=len(tokens))


@contextmanager
def _opened(
    target: Model,
    ids: Sequence[int],
    rows: int,
) -> Iterator[None]:
    for number in ids:
        target.open(number, rows)
    try:
        yield
    finally:
        for number in ids:
            target.close(number)


def _first_difference(
    alone: Logits,
    others: list[Logits],
) -> int | None:
    """Return the first row that has other bits in any reading; None if all are
    equal.
    """
    rows = [
        int(unequal.nonzero()[0])
        for logits in others
        if bool((unequal := (logits != alone[: len(logits)]).any(1)).any())
    ]
    return min(rows, default=None)
