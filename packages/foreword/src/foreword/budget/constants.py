"""The constants of the adaptive budget, in one place.

None changes a text under `match`; they change its speed. A reason that names no
measurement is an argument: docs/budgets.md measures the policy as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AdaptiveConstants:
    """Constants of AdaptiveBudget and its estimates, each with unit and reason.

    The weight of the past per round is `estimators.DECAY`, and a round is clipped at
    `estimators.OUTLIER` times its expectation, here as everywhere.
    """

    unread: int = 8
    """Tokens that a drafter may lag without catching up: a round or two add so many."""
    memory: float = 0.98
    """Weight of the past per round in the speed of drafting: about fifty rounds."""

    tree: int = 48
    """Draft tokens of the largest tree, unless more rows are cheap."""
    cheap: float = 2.0
    """Times the seconds of one row. A tree may exceed `tree` if its forward takes no
    longer: it waits for a disk."""
    begin: int = 8
    """Draft tokens requested at first where probabilities are stated."""
    least: int = 4
    """Draft tokens requested at least, so that the number can grow again."""
    margin: int = 2
    """Draft tokens requested beyond the number that was kept, likewise."""
    shrink: int = 16
    """The number falls by one part in so many a round: slower than it grows, so that a
    round of few does not cut the next."""
    steps: int = 12
    """Rounds in which the number can grow from nothing to the largest tree."""
    floor: float = 0.8
    """Highest floor on probabilities. A higher one could stop all drafting, and then
    never sink again."""
    scored: float = 1.0
    """Share of its scoring that a token must earn to be drafted; trimming decides the
    rest."""

    near: float = 0.2
    """Weight of a forward in the cost of its own rows, falling by e for each factor of
    2 in rows: few rows wait for memory, many for the processor."""
    far: float = 0.02
    """Long-run weight of a forward in the cost of all rows: fifty forwards adapt it to
    other programs on the machine."""
    far_at_first: float = 0.5
    """The same of the first forward: the kept table may be of another hour."""
    far_fades: float = 0.6
    """Factor on that weight per forward, down to `far`: seven forwards."""
    seconds: float = 1e-7
    """Least seconds of a forward; a coarse clock may show 0."""


C = AdaptiveConstants()
"""All of them; a short name, for it stands in many formulas."""
