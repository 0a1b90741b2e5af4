"""Drawn tokens, each with the law that it should follow."""

from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

Law: TypeAlias = Float[np.ndarray, "row cell"]


@dataclass(frozen=True, slots=True)
class Row:
    """One token, in the fields of `Rows`."""

    law: Float[np.ndarray, "cell"]
    drawn: int
    draft: Float[np.ndarray, "cell"]
    copied: Bool[np.ndarray, "cell"]
    recent: Bool[np.ndarray, "cell"]
    excess: Float[np.ndarray, "cell"]
    seen: Float[np.ndarray, "cell"]
    before: float


@dataclass(frozen=True, slots=True)
class Rows:
    """Tokens that were drawn, each with the law that it should follow.

    Cells are the likeliest tokens of a row in falling order; the last cell is all
    others. A cell that a row does not have has no probability.
    """

    law: Law
    """Probabilities."""
    drawn: Int[np.ndarray, "row"]
    """Cell of the token that was drawn."""
    draft: Law
    """Probabilities of the same cells by a drafter; the law where there is none."""
    copied: Bool[np.ndarray, "row cell"]
    """Whether the cell's token followed the last two tokens when they stood last."""
    recent: Bool[np.ndarray, "row cell"]
    """Whether the cell's token is among the last few."""
    excess: Law
    """How much more often than expected the token was drawn so far, from -1 to 1."""
    seen: Law
    """How often the token was drawn after the same text before."""
    before: Float[np.ndarray, "row"]
    """Where the token before stood in its law: likeliest -1, least likely 1, first 0.
    """

    @classmethod
    def joined(cls, rows: list[Row]) -> "Rows":
        """Return rows as arrays; the last cell of each stays the last."""
        width = max(len(row.law) for row in rows)
        columns = {
            each.name: [getattr(row, each.name) for row in rows] for each in fields(cls)
        }
        sizes = [len(row.law) for row in rows]
        columns["drawn"] = [
            cell if cell < size - 1 else width - 1
            for cell, size in zip(columns["drawn"], sizes, strict=True)
        ]
        return cls(
            **{name: _stacked(values, width) for name, values in columns.items()}
        )

    def __len__(self) -> int:
        return len(self.drawn)


def _stacked(values: list, width: int) -> np.ndarray:
    first = np.asarray(values[0])
    if first.ndim == 0:
        return np.array(values)
    stacked = np.zeros((len(values), width), first.dtype)
    for into, value in zip(stacked, values, strict=True):
        into[: len(value) - 1] = value[:-1]
        into[-1] = value[-1]
    return stacked


def place(law: Float[np.ndarray, "cell"], cell: int) -> float:
    """Return where a cell stands in its law: the likeliest -1, the least likely 1."""
    middle = law[:cell].sum() + law[cell] / 2
    return float(2 * middle - 1)
