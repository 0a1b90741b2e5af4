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
from foreword.hindsight.playback import Known, play
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

    outcomes: tuple[Outcome, ...]
    """The fastest first."""
    left_out: tuple[LeftOut, ...]

    def as_json(self, *, trees: bool = False) -> dict[str, Any]:
        """Return plain values; with `trees`, also every round."""
        return {
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
    overhead = _overhead(recording.rounds)
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
        plain = outcomes[0].seconds if outcomes else 0.0
        times = _seconds(session.target, known, played.rounds, overhead)
        outcomes.append(
            Outcome(
                name,
                count,
                len(played.rounds),
                len(known.answer),
                sum(len(one.draft) for one in played.rounds),
                sum(len(one.accepted) for one in played.rounds),
                sum(times),
                sum(drafting_seconds(played.rounds)),
                plain / sum(times) if plain else 1.0,
                played.reread,
                played.rounds,
            )
        )
    outcomes.sort(key=lambda one: one.seconds)
    return WhatIf(tuple(outcomes), tuple(left_out.values()))


def _check_vocabulary(target: Model, known: Known) -> None:
    if max(known.text) >= target.vocab:
        raise InvalidRequest(
            f"cannot replay this recording with {target.name}: it has tokens beyond "
            f"the {target.vocab} of this model. Give the model that it was made with"
        )


def _overhead(rounds: Sequence[Round]) -> float:
    """Return the seconds of verify and commit of a recorded round, on average."""
    return fmean(one.verify_ms + one.commit_ms for one in rounds) / MILLI


def _seconds(
    target: Model, known: Known, rounds: Sequence[Round], overhead: float
) -> list[float]:
    """Return the predicted seconds of each round."""
    times, context = [], len(known.prompt)
    for one, drafting in zip(rounds, drafting_seconds(rounds), strict=True):
        forward = target.cost(len(one.draft), 1, context)
        times.append(drafting + forward + overhead)
        context += len(one.pieces)
    return times


def drafting_seconds(rounds: Sequence[Round]) -> list[float]:
    """Return the seconds of drafting of each round; of the first, in which a drafter
    also reads the prompt, the mean of the others.
    """
    seconds = [one.propose_ms / MILLI for one in rounds]
    return [fmean(seconds[1:]), *seconds[1:]] if len(seconds) > 1 else seconds
