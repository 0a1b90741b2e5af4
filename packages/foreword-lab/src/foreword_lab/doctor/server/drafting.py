"""Causes in the drafting of each method of a server."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from foreword.registry import DEFAULT_METHOD
from foreword_lab.doctor.acceptance import GOOD, RARE, TRAIN, TRAINED
from foreword_lab.doctor.finding import MATTERS, Finding
from foreword_lab.doctor.formulas import PassCost, best_gamma, speed_up, tokens_by_depth
from foreword_lab.doctor.server.metrics import ServerMetrics

ASSUMED = 0.05
"""Steps of the target. Cost of a draft token where the metrics do not tell: drafters of
arXiv 2211.17192, section 4, cost at most this.
"""
ENOUGH = 50
"""Rounds that drafted, below which shares are rough."""
DRAFTS = "vllm:spec_decode_num_drafts_total"
TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
BY_DEPTH = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodCounts:
    """Counts of one drafting method of a server."""

    method: str
    """Name; empty for a server that has one drafter and does not name it."""
    drafts: float
    """Rounds that drafted."""
    tokens: float
    """Draft tokens scored."""
    accepted: float
    accepted_at: tuple[float, ...]
    """Draft tokens accepted, by depth; empty if they are not counted by depth."""
    draft_seconds: float | None
    score_seconds: float | None
    """Seconds of rounds by step; None if they are not counted."""

    @property
    def named(self) -> str:
        """Words for the method at the beginning of a sentence."""
        return f"{self.method}: " if self.method else ""

    @property
    def nodes(self) -> int:
        """Draft tokens of a round, rounded."""
        return max(1, round(self.tokens / self.drafts))

    @property
    def depth(self) -> int:
        """Depth of its drafts: `nodes`, or less for trees."""
        return min(self.nodes, len(self.accepted_at) or self.nodes)

    @property
    def shares(self) -> tuple[float, ...]:
        """Share accepted at each depth if the one before was; short drafts reject."""
        if not self.accepted_at:
            return (self.accepted / self.tokens,) * self.depth
        counts = (self.drafts, *self.accepted_at[: self.depth])
        return tuple(min(1.0, b / a) if a else 0.0 for a, b in pairwise(counts))

    @property
    def drafting(self) -> float | None:
        """Seconds of drafting over seconds of the target; None if not counted."""
        if self.draft_seconds is None or not self.score_seconds:
            return None
        return self.draft_seconds / self.score_seconds

    @property
    def cost(self) -> PassCost:
        """Cost of a round, in steps of the target."""
        share = self.drafting
        return PassCost(token=ASSUMED if share is None else share / self.nodes)

    @property
    def speed(self) -> float:
        """Predicted speed over plain decoding of rounds that draft."""
        return speed_up(1 + self.accepted / self.drafts, self.nodes, self.cost)

    def gain(self, could: float) -> float:
        """Return times by which another speed is above this one; at least 1."""
        return max(1.0, could / self.speed)

    def speeds(self, most: int) -> list[float]:
        """Return the predicted speed by draft tokens, up to `most`: beyond those
        counted, the last share goes on.
        """
        shares = self.shares + self.shares[-1:] * max(0, most - self.depth)
        return [
            speed_up(tokens_by_depth(shares[:gamma]), gamma, self.cost)
            for gamma in range(most + 1)
        ]

    @property
    def summary(self) -> str:
        """Counts in words."""
        tokens = 1 + self.accepted / self.drafts
        return (
            f"{self.named}{tokens:.2f} tokens per drafting round with "
            f"{self.tokens / self.drafts:.1f} draft tokens, {self.speed:.2f}× plain "
            "decoding predicted"
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "drafts": self.drafts,
            "draft_tokens": self.tokens,
            "accepted": self.accepted,
            "accepted_share_by_depth": list(self.shares),
            "drafting_over_scoring": self.drafting,
            "tokens_per_draft": self.tokens / self.drafts,
            "speed": self.speed,
        }


def methods(metrics: ServerMetrics) -> list[MethodCounts]:
    """Return the counts of every method that has drafted."""
    return [
        _counts(metrics, name)
        for name, drafts in metrics.by("method", DRAFTS).items()
        if drafts and _of(metrics, name, TOKENS)
    ]


def _of(metrics: ServerMetrics, method: str, name: str) -> float:
    return metrics.by("method", name).get(method, 0.0)


def _counts(metrics: ServerMetrics, method: str) -> MethodCounts:
    labels = {"method": method} if method else {}
    by_depth = metrics.by("position", BY_DEPTH, **labels)
    ordered = sorted((int(place), count) for place, count in by_depth.items())
    seconds = [
        metrics.total(name, **labels) if metrics.has(name) else None
        for name in ("foreword:draft_seconds_total", "foreword:score_seconds_total")
    ]
    return MethodCounts(
        method=method,
        drafts=_of(metrics, method, DRAFTS),
        tokens=_of(metrics, method, TOKENS),
        accepted=_of(metrics, method, ACCEPTED),
        accepted_at=tuple(count for _, count in ordered),
        draft_seconds=seconds[0],
        score_seconds=seconds[1],
    )


def low_acceptance(counts: MethodCounts) -> list[Finding]:
    """Compare the share of first draft tokens accepted with a trained drafter's."""
    shares = counts.shares
    rounds = f"{counts.drafts:,.0f} rounds"
    if shares[0] >= GOOD:
        evidence = (
            f"{counts.named}{shares[0]:.0%} of the first draft tokens are accepted, in "
            f"{rounds}"
        )
        return [Finding("good", "acceptance", evidence)]
    reached = [max(TRAINED, share) for share in shares]
    could = speed_up(tokens_by_depth(reached), counts.nodes, counts.cost)
    bad = shares[0] < RARE and counts.drafts >= ENOUGH
    evidence = (
        f"{counts.named}{shares[0]:.0%} of the first draft tokens are accepted, and "
        f"{counts.accepted / counts.tokens:.0%} of all, in {rounds}; {TRAINED:.0%} can "
        "be reached"
    )
    level = "bad" if bad else "note"
    return [
        Finding(
            level,
            "low acceptance",
            evidence,
            TRAIN,
            cost=counts.gain(could),
            speed=could,
        )
    ]


def length(counts: MethodCounts) -> list[Finding]:
    """Compare the number of draft tokens with the fastest one."""
    nodes, depth = counts.nodes, counts.depth
    if depth < nodes or counts.drafts < ENOUGH:
        return []  # trees: a draft token more may be another branch
    speeds = counts.speeds(2 * nodes)
    best = best_gamma(speeds)
    if speeds[best] < MATTERS * speeds[nodes] or best == nodes:
        return []
    deepest = counts.accepted_at[depth - 1] / counts.drafts if counts.accepted_at else 0
    assumed = "" if counts.drafting is not None else f" (taken to cost {ASSUMED} steps)"
    evidence = (
        f"{counts.named}{counts.accepted / counts.drafts:.2f} of {nodes} draft tokens "
        f"a round{assumed} are accepted, the last in {deepest:.0%} of the rounds"
    )
    if best > nodes:
        name, change = "too few draft tokens", f"Draft about {best} tokens a round"
    else:
        name, change = "too many draft tokens", f"Draft {best} tokens a round"
    if not best:
        change = "Turn drafting off, or use another drafter"
    remedy = f"{change}: foreword serve --nodes N, num_speculative_tokens of vLLM"
    could = counts.speed * speeds[best] / speeds[nodes]
    return [Finding("note", name, evidence, remedy, counts.gain(could), could)]


def dear_drafter(counts: MethodCounts) -> list[Finding]:
    """Predict the speed if drafting took no time."""
    share = counts.drafting
    if share is None:
        return []
    evidence = (
        f"{counts.named}drafting takes {share / (1 + share):.0%} of the time of the "
        f"rounds, {share / counts.nodes:.0%} of a forward of the target for each draft "
        "token"
    )
    could = counts.speed * (1 + share)
    if 1 + share < MATTERS:
        return [Finding("good", "cost of drafting", evidence)]
    remedy = (
        "Use a smaller drafter or a trained head, fewer draft tokens, or a method "
        f"without a model: --method {DEFAULT_METHOD}"
    )
    level = "bad" if counts.speed < 1 and counts.drafts >= ENOUGH else "note"
    cost = counts.gain(could)
    return [Finding(level, "dear drafter", evidence, remedy, cost, could)]


def off(metrics: ServerMetrics, counts: Sequence[MethodCounts]) -> list[Finding]:
    """Report a server that drafts nothing, or that often drafts nothing."""
    without = metrics.by("reason", "foreword:answers_without_drafts_total")
    answers = metrics.total("vllm:request_success_total")
    reasons = ", ".join(
        f"{why}: {count:,.0f}" for why, count in without.items() if count
    )
    remedy = (
        "Start it with a draft model or a method: foreword serve --draft FOLDER; vLLM "
        "takes --speculative-config"
    )
    if not counts:
        evidence = "nothing was drafted in any answer" + (
            f" ({reasons})" if reasons else ": it has no counts of draft tokens"
        )
        return [Finding("bad", "drafting off", evidence, remedy)]
    share = sum(without.values()) / answers if answers else 0.0
    if share < MATTERS - 1:
        return []
    speed = max(one.speed for one in counts)
    could = 1 / (1 - share + share / speed) if speed > 1 else 1.0
    evidence = f"{share:.0%} of the answers had no draft token ({reasons})"
    remedy = (
        "For budget, drafting was not expected to save time: use a faster drafter; for "
        "no-match, use one with a model: foreword serve --draft"
    )
    return [Finding("note", "answers without drafts", evidence, remedy, could)]
