"""The trace of one round: `Delta.round`, `Completion.rounds`, rounds of a recording."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = [
    "REASONS",
    "AddedToken",
    "DraftToken",
    "Reason",
    "Round",
    "Undrafted",
    "short",
]

DIGITS = 6
"""Significant digits of a probability or time, near float32's."""

Reason = Literal[
    "method", "failed", "target", "last-token", "budget", "no-match", "dropped"
]
"""Why nothing was drafted in a round."""

REASONS: dict[Reason, str] = {
    "method": "The method drafts nothing: this is plain decoding.",
    "failed": "The drafter failed, so drafting is off.",
    "target": "The backend of the target cannot verify draft tokens.",
    "last-token": "Only one more token may be emitted, and the target adds it.",
    "budget": (
        "The budget allowed no draft token: drafting was not expected to save time."
    ),
    "no-match": (
        "The drafter proposed nothing: it found no match, or no token likely enough."
    ),
    "dropped": (
        "Every proposed token was dropped: none was likely enough to pay for its "
        "scoring."
    ),
}
"""A sentence for each reason."""


@dataclass(frozen=True, slots=True)
class DraftToken:
    """A node of the draft tree."""

    token: int
    text: str
    """The token alone, as it reads after the one before; empty without a tokenizer."""
    parent: int
    """Node that it follows; -1 = the last committed token. Parents come first."""
    draft_prob: float | None
    """The drafter's probability of this token after its parent: the q it was sampled
    from, or the drafter's estimate that the target emits it there. None if the drafter
    gives neither."""
    target_prob: float | None
    """The target's probability of this token after its parent, under the distribution
    that the request samples from: after bias, penalties, filters and temperature. At
    temperature 0, where sampling has none, that of temperature 1 without filters. None
    after a path where the request's own processors fail."""


@dataclass(frozen=True, slots=True)
class AddedToken:
    """The token that the target added after the accepted path."""

    token: int
    text: str
    target_prob: float | None
    """Probability as `DraftToken.target_prob` gives it."""
    kind: Literal["bonus", "correction", "plain"]
    """*bonus*: the path was accepted to its end; *correction*: the draft went on, and
    none of its tokens there was accepted; *plain*: nothing was drafted."""


@dataclass(frozen=True, slots=True)
class Undrafted:
    """Why nothing was drafted."""

    reason: Reason
    text: str
    """One sentence."""


@dataclass(slots=True)
class Round:
    """Trace of one round of one sequence, in milliseconds without the tracing."""

    draft: tuple[DraftToken, ...]
    """The draft tree that the target scored."""
    accepted: tuple[int, ...]
    """Nodes of the accepted path, from the root on, before a stop or limit cuts it."""
    added: AddedToken
    budget: int
    """Draft tokens allowed."""
    undrafted: Undrafted | None
    """Set if `draft` is empty."""
    rows: int
    """Tokens the forward read, of all sequences: prompts, pending, draft tokens."""
    prompt_rows: int
    """Rows of prompts among them."""
    sequences: int
    """Sequences in the forward."""
    prefill_tokens: int = 0
    """In a first round: prompt tokens read before, in rounds that emit nothing."""
    prefill_ms: float = 0.0
    """Duration of those rounds."""
    propose_ms: float = 0.0
    score_ms: float = 0.0
    verify_ms: float = 0.0
    commit_ms: float = 0.0
    pieces: tuple[str, ...] = ()
    """Text that each emitted token made final. One for each token of the path and the
    added one, but fewer where the answer ended before the last of them."""
    method: str = ""
    """The method that wrote it, where the request chooses among several; else empty."""
    speeds: dict[str, float] = field(default_factory=dict)
    """By method: tokens that it should write in the time of a plain round, as of the
    last decision, or by the draft that was looked up. Empty where nothing is chosen."""

    @property
    def tokens(self) -> list[int]:
        """Ids of the emitted tokens."""
        return [*(self.draft[node].token for node in self.accepted), self.added.token][
            : len(self.pieces)
        ]

    @property
    def milliseconds(self) -> float:
        """Duration of the round, and of the prefill before it."""
        return (
            self.prefill_ms
            + self.propose_ms
            + self.score_ms
            + self.verify_ms
            + self.commit_ms
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain values: `Round` of recording.schema.json."""
        return asdict(self)


def short(value: float) -> float:
    """Return a number with `DIGITS` significant digits."""
    return float(f"{value:.{DIGITS}g}")
