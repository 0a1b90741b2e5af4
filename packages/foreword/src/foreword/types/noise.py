"""The randomness of one verification, and the form of a verification rule."""

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from foreword.types.draft import Draft, Verdict


@dataclass(frozen=True, slots=True)
class Noise:
    """All randomness of one verification: the same noise gives the same verdict.

    A column is a position to draw at: 0 after the last committed token, i + 1 after
    node i.

    `gumbel` belongs to `match` and is shared with the drafter; the uniform streams
    belong to the other rules and are independent of it, of each other and of the
    drafter's noise (docs/guarantees.md).
    """

    gumbel: Float[Tensor, "batch column vocab"] | None
    """Standard Gumbel noise of the position of each column; None = zero."""
    accept: Float[Tensor, "batch column"]
    """Uniform in (0, 1): column i is node i's acceptance test; the last is unused."""
    bonus: Float[Tensor, "batch column"]
    """Uniform in (0, 1): draws the bonus after the path that ends at each column."""


Verify = Callable[[Float[Tensor, "batch column vocab"], Draft, Noise], Verdict]
"""A rule, as a pure function: (log-weights, draft, noise) -> verdict. Log-weights are
the target's unnormalised log-probabilities, -inf = forbidden; column 0 is after the
last committed token, column i + 1 after node i."""
