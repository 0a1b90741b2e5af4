"""Rows whose first layers have run: a view drafts with them, and the target's forward
goes on from there (LayerSkip, Elhoushi et al. 2024, section 4.3).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.model.kv.reads import Read

States = Float[Tensor, "rows hidden"]


@dataclass(slots=True)
class _Rows:
    """Rows of one sequence, one after the other."""

    start: int
    """The first of them."""
    states: States
    """Hidden states after the first layers."""
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    """The row before each, in the text or in the tree."""

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)


class EarlyRows:
    """The rows that one view has run through the first layers: their keys and values
    in these layers are in the pool, and their hidden states are here.

    Rows are forgotten when their place in the pool is to be written, so what is left
    can be used.
    """

    def __init__(self, layers: int, run: Callable[[Sequence[Read]], States]) -> None:
        """`run` reads through the first `layers`; it returns their hidden states."""
        self.layers = layers
        self.kept = 0
        """Rows so far that the target did not run through these layers again."""
        self._run = run
        self._rows: dict[int, _Rows] = {}

    def note(self, read: Read, states: States) -> None:
        """Keep the hidden states of what a view has read."""
        rows = self._rows.get(read.id)
        if rows is None or rows.stop != read.start:
            rows = self._rows[read.id] = _Rows(read.start, states)
        else:
            rows.states = torch.cat([rows.states, states])
        rows.tokens += read.tokens
        rows.parents += _parents(read)

    def drop(self, id: int, start: int = 0) -> None:
        """Forget the rows of a sequence from `start` on."""
        rows = self._rows.get(id)
        if rows is None or start >= rows.stop:
            return
        count = start - rows.start
        if count <= 0:
            del self._rows[id]
            return
        rows.states = rows.states[:count]
        del rows.tokens[count:]
        del rows.parents[count:]

    def holds(self, reads: Sequence[Read]) -> bool:
        """Whether rows of one of these sequences are here."""
        return any(read.id in self._rows for read in reads)

    def complete(
        self, reads: Sequence[Read], move: Callable[[int, list[int], int], None]
    ) -> States:
        """Run the first layers for the rows that are not here, and return the states of
        all tokens of the reads.

        `move` makes rows contiguous, as a backend does after a commit.
        """
        early_states: list[States] = []
        rest: list[Read] = []
        for read in reads:
            places, states = self._taken(read)
            self.kept += len(places)
            early_states.append(states)
            if places != list(range(read.start, read.start + len(places))):
                move(read.id, places, read.start)
            if len(places) < len(read.tokens):
                rest.append(_after(read, len(places)))
        if not rest:
            return torch.cat(early_states)
        run = iter(self._run(rest).split([len(read.tokens) for read in rest]))
        parts: list[States] = []
        for read, states in zip(reads, early_states, strict=True):
            parts.append(states)
            if len(states) < len(read.tokens):
                parts.append(next(run))
        return torch.cat([part for part in parts if len(part)])

    def _taken(self, read: Read) -> tuple[list[int], States]:
        """Return the rows of the first tokens of a read, as many as are here in order,
        and their states; forget the others.
        """
        rows = self._rows.pop(read.id, None)
        if rows is None or read.held:
            return [], torch.empty(0, 0)
        row_of: dict[tuple[int, int], int] = {}
        for row, pair in enumerate(
            zip(rows.parents, rows.tokens, strict=True), rows.start
        ):
            row_of.setdefault(pair, row)
        old_rows = {read.past - 1: read.past - 1}
        places: list[int] = []
        pairs = zip(_parents(read), read.tokens, strict=True)
        for row, (parent, token) in enumerate(pairs, read.past):
            at = row_of.get((old_rows.get(parent, -2), token), -1)
            if at < row or (places and at <= places[-1]):
                break
            old_rows[row] = at
            places.append(at)
        return places, rows.states[[row - rows.start for row in places]]


def _parents(read: Read) -> list[int]:
    """Return the row before each token of a read."""
    stop = read.start + len(read.tokens)
    if read.parents is None:
        return list(range(read.start - 1, stop - 1))
    first = stop - len(read.parents)
    text = list(range(read.past - 1, first - 1))
    drafted = [first + parent for parent in read.parents]
    return [*text, *drafted][read.held :]


def _after(read: Read, count: int) -> Read:
    """Return the read of the tokens after the first `count`, without logits."""
    tokens = read.tokens[count:]
    if read.parents is None:
        return Read(read.id, read.past + count, tokens, keep=0)
    text = len(read.tokens) - len(read.parents)
    past = read.past + min(count, text)
    held = max(0, count - text)
    return Read(read.id, past, tokens, read.parents, keep=0, held=held)
