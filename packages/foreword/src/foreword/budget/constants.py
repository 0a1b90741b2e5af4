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

    chain: int = 16
    """Tokens. Longest chain: at 0.9 acceptance the sixteenth token adds 0.19."""
    unpriced: int = 4
    """Tokens. Longest chain before drafting was timed, so that a dear drafter costs
    little."""
    first: float = 0.7
    """Acceptance of a first draft token before any: high enough that drafting is tried,
    and forgotten after a few rounds."""
    prior: float = 2.0
    """Rounds. Weight of all sequences in the acceptance of one: a new text follows its
    own rounds within about two."""

    backoff: int = 4
    """Rounds of the first pause after a loss; it doubles, so tries cost ever less."""
    longest: int = 256
    """Rounds. Longest pause, and cap on recorded losses: a drafter that recovers is
    found within one long answer."""
    unread: int = 8
    """Tokens that a drafter may lag without catching up: a round or two add so many."""
    loss_budget: int = 8
    """Rounds of plain decoding that trying out may lose: bounds the slowdown of a short
    answer."""
    saved: int = 32
    """Rounds of plain decoding that drafting may save up before it loses some: rounds
    differ so much that a drafter of 1.1 times the speed loses a few often."""
    memory: float = 0.98
    """Weight of the past per round in the speed of drafting: about fifty rounds, for
    the same reason."""
    share: float = 0.003
    """Share of plain decoding that later tries may lose: bounds that of long ones. At
    0.01, tries were half of what drafting lost in batches of 32."""
    spent: float = 1.05
    """Share of that budget that is spent before a process begins, if drafting lost in
    earlier ones: the first try then waits for a hundred rounds or two."""
    evidence: float = 8.0
    """Rounds of plain decoding. Time of rounds with draft tokens whose speed is kept
    for later processes, and its weight in them."""
    losing: float = 0.98
    """Speed over plain decoding below which drafting loses; two percent are noise."""
    probe_every: int = 64
    """Rounds with draft tokens before one without: 1.6% of rounds keep the cost of
    plain decoding known."""
    rest: int = 7
    """Rounds after two without draft tokens in which none are considered: deciding
    takes some 3% of a round of a small model."""

    levels: int = 8
    """Bins of stated probabilities: as many forwards are priced in each round."""
    tries: tuple[int, ...] = (1, 4, 16)
    """Tokens. Chain lengths that are checked for whether any could pay; powers of 4 up
    to `chain`."""
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
