"""One answer, re-scored for other methods and numbers of draft tokens: how many rounds
each would have taken, and how long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from foreword.api.session import Session
from foreword.draft import MethodSpec
from foreword.draft import method as find_method
from foreword.errors import ForewordError, InvalidRequest
from foreword.hindsight.playback import Known, Played, play
from foreword.model import Model
from foreword.recording import Recording
from foreword.registry import METHODS, PLAIN
from foreword.types import Round

if TYPE_CHECKING:
    from foreword.api.llm import LLM

NODES = (4, 8, 16)
"""Default numbers of draft tokens in a round."""
MILLI = 1000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one method with a constant number of draft tokens would have earned."""

    method: str
    nodes: int
    """Draft tokens in a round, at most; 0 for plain decoding."""
    passes: int
    """Forwards of the target."""
    tokens: int
    drafted: int
    accepted: int
    seconds: float
    """Predicted: measured drafting, the measured cost of a forward over as many tokens
    at this place of the text, and the rest of a round as recorded. Reading the prompt
    is left out, also the drafter's.
    """
    drafting: float
    """Seconds of drafting among them, measured now."""
    over_plain: float
    """Predicted seconds of plain decoding, divided by `seconds`."""
    reread: bool
    """Whether the target had to read the text again, since the drafter reads what it
    reads.
    """
    rounds: tuple[Round, ...]
    """With the draft trees."""

    @property
    def tokens_per_pass(self) -> float:
        """Return the tokens that a forward wrote, on average."""
        return self.tokens / self.passes

    def as_json(self, *, trees: bool = False) -> dict[str, Any]:
        """Return plain values; with `trees`, also every round."""
        values = asdict(self) | {"tokens_per_pass": self.tokens_per_pass}
        if not trees:
            del values["rounds"]
        return values


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A method that could not be replayed."""

    method: str
    why: str


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One answer under every method."""

    recorded: Outcome
    """The answer as it was written: its own rounds, in the same predicted seconds."""
    outcomes: tuple[Outcome, ...]
    """The fastest first."""
    left_out: tuple[LeftOut, ...]

    @property
    def regret(self) -> float:
        """Return the share of time that the best constant choice among the outcomes
        would have saved; below 0 if the answer was faster than each of them.
        """
        return self.recorded.seconds / self.outcomes[0].seconds - 1

    def as_json(self, *, trees: bool = False) -> dict[str, Any]:
        """Return plain values; with `trees`, also every round."""
        return {
            "recorded": self.recorded.as_json(),
            "regret": self.regret,
            "outcomes": [one.as_json(trees=trees) for one in self.outcomes],
            "left_out": [asdict(one) for one in self.left_out],
        }


def candidates(session: Session) -> list[str]:
    """Return the methods that can be replayed: all that requests may name, without
    plain decoding and ensembles.
    """
    return [
        name
        for name in METHODS.own
        if name != PLAIN
        and not isinstance(find_method(name), MethodSpec)
        and session.can_draft(name)
    ]


def what_if(
    llm: LLM,
    recording: Recording,
    methods: Sequence[str] | None = None,
    nodes: Sequence[int] = NODES,
    progress: Callable[[str], None] = lambda _: None,
) -> WhatIf:
    """Re-score a recorded answer for these methods (default: all that `llm` can draft
    with), each with these numbers of draft tokens, and for plain decoding.

    >>> for one in what_if(llm, recording, ["suffix", "lm"]).outcomes:
    ...     print(one.method, one.nodes, one.tokens_per_pass, one.over_plain)

    Exact for the rule `match`, under which the text does not depend on the drafter. A
    method that cannot be replayed is left out, with the reason. Raises InvalidRequest
    for a recording without tokens, or one of another vocabulary.
    """
    session, known = llm.session, Known.of(recording)
    methods = candidates(session) if methods is None else methods
    _check_vocabulary(session.target, known)
    priced = _Prices(session.target, known, _overhead(recording.rounds))
    arms = [(PLAIN, 0), *((name, count) for name in methods for count in nodes)]
    outcomes, left_out = list[Outcome](), dict[str, LeftOut]()
    for number, (name, count) in enumerate(arms):
        progress(f"{number} of {len(arms)}: {name}, {count} draft tokens")
        if name in left_out:
            continue
        try:
            played = play(session, known, name, count)
        except ForewordError as error:
            left_out[name] = LeftOut(name, str(error))
            continue
        outcomes.append(priced.outcome(name, count, played))
    most = max(one.budget for one in recording.rounds)
    own = Played(recording.rounds, reread=False)
    return WhatIf(
        priced.outcome(recording.method, most, own),
        tuple(sorted(outcomes, key=lambda one: one.seconds)),
        tuple(left_out.values()),
    )


def _check_vocabulary(target: Model, known: Known) -> None:
    if max(known.text) >= target.vocab:
        raise InvalidRequest(
            f"cannot replay this recording with {target.name}: it has tokens beyond "
            f"the {target.vocab} of this model. Give the model that it was made with"
        )


def _overhead(rounds: Sequence[Round]) -> float:
    """Return the seconds of verify and commit of a recorded round, on average."""
    return fmean(one.verify_ms + one.commit_ms for one in rounds) / MILLI


class _Prices:
    """Predicts the seconds of rounds, and compares them with plain decoding, whose
    outcome comes first.
    """

    def __init__(self, target: Model, known: Known, overhead: float) -> None:
        self._target, self._known = target, known
        self._overhead = overhead
        self._plain: float | None = None

    def outcome(self, method: str, nodes: int, played: Played) -> Outcome:
        """Return what these rounds earned."""
        rounds = played.rounds
        drafting = drafting_seconds(rounds)
        seconds = sum(self._forwards(rounds)) + sum(drafting)
        if self._plain is None:
            self._plain = seconds
        return Outcome(
            method,
            nodes,
            passes=len(rounds),
            tokens=len(self._known.answer),
            drafted=sum(len(one.draft) for one in rounds),
            accepted=sum(len(one.accepted) for one in rounds),
            seconds=seconds,
            drafting=sum(drafting),
            over_plain=self._plain / seconds,
            reread=played.reread,
            rounds=rounds,
        )

    def _forwards(self, rounds: Sequence[Round]) -> list[float]:
        """Return the predicted seconds of each round without drafting."""
        times, context = [], len(self._known.prompt)
        for one in rounds:
            forward = self._target.cost(len(one.draft), 1, context)
            times.append(forward + self._overhead)
            context += len(one.pieces)
        return times


def drafting_seconds(rounds: Sequence[Round]) -> list[float]:
    """Return the seconds of drafting of each round; of the first, in which a drafter
    also reads the prompt, the mean of the others.
    """
    seconds = [one.propose_ms / MILLI for one in rounds]
    return [fmean(seconds[1:]), *seconds[1:]] if len(seconds) > 1 else seconds
