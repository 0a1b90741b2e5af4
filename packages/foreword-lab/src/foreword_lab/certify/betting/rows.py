"""Drawn tokens, each with its stated distribution."""

from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

Distribution: TypeAlias = Float[np.ndarray, "row cell"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Tokens that were drawn, and the distribution of each.

    Cells are the likeliest tokens of a row in falling order; the last cell is all
    others. A cell that a row does not have has the probability 0.
    """

    target: Distribution
    """Probabilities by the server."""
    drawn: Int[np.ndarray, "row"]
    """Cell of the token that was drawn."""
    draft: Distribution
    """Probabilities by a drafter; the target's where there is none."""
    copied: Bool[np.ndarray, "row cell"]
    """Whether the cell's token followed the last two tokens when they stood last."""
    recent: Bool[np.ndarray, "row cell"]
    """Whether the cell's token is among the last few."""
    excess: Distribution
    """How much more often than expected the token was drawn so far, from -1 to 1."""
    seen: Distribution
    """How often the token was drawn after the same text before."""
    before: Float[np.ndarray, "row"]
    """Quantile of the token before in its distribution, likeliest first, from -1 to 1;
    0 for the first of a text.
    """

    @classmethod
    def joined(cls, rows: list[dict[str, Any]]) -> "Rows":
        """Return single rows, in these fields, as arrays: the last cell stays last."""
        width = max(len(row["target"]) for row in rows)
        columns = {}
        for field in fields(cls):
            values = [row[field.name] for row in rows]
            columns[field.name] = _stacked(values, width)
        last = np.array([len(row["target"]) - 1 for row in rows])
        drawn = columns["drawn"]
        columns["drawn"] = np.where(drawn == last, width - 1, drawn)
        return cls(**columns)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.drawn)


def _stacked(values: list[Any], width: int) -> np.ndarray:
    first = np.asarray(values[0])
    if first.ndim == 0:
        return np.array(values)
    stacked = np.zeros((len(values), width), first.dtype)
    for into, value in zip(stacked, values, strict=True):
        into[: len(value) - 1] = value[:-1]
        into[-1] = value[-1]
    return stacked


def quantile(target: Float[np.ndarray, "cell"], cell: int) -> float:
    """Return where a cell stands in its distribution: from -1, likeliest, to 1."""
    middle = target[:cell].sum() + target[cell] / 2
    return float(2 * middle - 1)
