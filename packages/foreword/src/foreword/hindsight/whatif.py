"""One answer, re-scored for other methods and numbers of draft tokens: how many rounds
each would have taken, and how long.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, Any

from foreword.api.session import Session
from foreword.draft import MethodSpec
from foreword.draft import method as find_method
from foreword.errors import ForewordError, InvalidRequest
from foreword.hindsight.known_rule import check_rule
from foreword.hindsight.playback import Known, Played, play
from foreword.model import Model
from foreword.recording import Recording
from foreword.registry import DEFAULT_RULE, METHODS, PLAIN
from foreword.types import Round
from foreword.wanted import check_wanted

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
    """Whether the target had to read the text again, for a drafter that reads it."""
    rounds: tuple[Round, ...]
    """With the draft trees."""
    rule: str = DEFAULT_RULE
    refused: tuple[int, ...] = ()
    """Draft tokens of each round that are not in its draft: the rule refused them, and
    it is not known which they were. Empty where all are known.
    """
    by_round: tuple[float, ...] = ()
    """Predicted seconds of each round."""

    @property
    def tokens_per_pass(self) -> float:
        """Return the tokens that a forward wrote, on average."""
        return self.tokens / self.passes

    def as_json(self, *, trees: bool = False) -> dict[str, Any]:
        """Return plain values; with `trees`, also every round."""
        values = asdict(self) | {"tokens_per_pass": self.tokens_per_pass}
        if not trees:
            for name in ("rounds", "refused", "by_round"):
                del values[name]
        return values


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A method that could not be replayed."""

    method: str
    why: str
    rule: str = DEFAULT_RULE


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
        and session.speculators.can_draft(name)
    ]


def what_if(
    llm: "LLM",
    recording: Recording,
    methods: Sequence[str] | None = None,
    nodes: Sequence[int] = NODES,
    progress: Callable[[str], None] = lambda _: None,
    *,
    rules: Sequence[str] = (DEFAULT_RULE,),
) -> WhatIf:
    """Re-score a recorded answer for these methods (default: all that `llm` can draft
    with), each with these numbers of draft tokens and rules, and for plain decoding.

    Exact for the rule `match`, under which the text does not depend on the drafter. The
    rounds of another rule are a sample of what it would have taken, given this text, on
    chains; at temperature 0 they are a fact. A method that cannot be replayed is left
    out, with the reason. Raises InvalidRequest for a recording without tokens, one of
    another vocabulary, or a rule that cannot be replayed.

    Examples:
        >>> for row in what_if(llm, recording, ["suffix", "lm"]).outcomes:
        ...     print(row.method, row.nodes, row.tokens_per_pass, row.over_plain)
    """
    for rule in rules:
        check_rule(rule)
    session, known = llm.session, Known.of(recording)
    methods = candidates(session) if methods is None else methods
    _check_vocabulary(session.target, known)
    priced = _Prices(session.target, known, _overhead(recording.rounds))
    arms = [(PLAIN, 0, DEFAULT_RULE), *product(methods, nodes, dict.fromkeys(rules))]
    outcomes, left_out = list[Outcome](), dict[tuple[str, str], LeftOut]()
    for number, (name, count, rule) in enumerate(arms):
        check_wanted()
        progress(f"{number} of {len(arms)}: {name}, {count} draft tokens")
        if (name, rule) in left_out:
            continue
        try:
            played = play(session, known, name, count, rule)
        except ForewordError as error:
            left_out[name, rule] = LeftOut(name, str(error), rule)
            continue
        outcomes.append(priced.outcome(name, count, played))
    most = max(one.budget for one in recording.rounds)
    actual = Played(recording.rounds, reread=False, rule=recording.rule)
    return WhatIf(
        priced.outcome(recording.method, most, actual),
        tuple(sorted(outcomes, key=lambda outcome: outcome.seconds)),
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
        times = zip(self._forwards(played), drafting, strict=True)
        by_round = tuple(map(sum, times))
        seconds = sum(by_round)
        if self._plain is None:
            self._plain = seconds
        return Outcome(
            method,
            nodes,
            passes=len(rounds),
            tokens=len(self._known.answer),
            drafted=sum(len(one.draft) for one in rounds) + sum(played.refused),
            accepted=sum(len(one.accepted) for one in rounds),
            seconds=seconds,
            drafting=sum(drafting),
            over_plain=self._plain / seconds,
            reread=played.reread,
            rounds=rounds,
            rule=played.rule,
            refused=played.refused,
            by_round=by_round,
        )

    def _forwards(self, played: Played) -> list[float]:
        """Return the predicted seconds of each round without drafting."""
        times, context = [], len(self._known.prompt)
        refused = played.refused or [0] * len(played.rounds)
        for round_, more in zip(played.rounds, refused, strict=True):
            forward = self._target.cost(len(round_.draft) + more, 1, context)
            times.append(forward + self._overhead)
            context += len(round_.pieces)
        return times


def drafting_seconds(rounds: Sequence[Round]) -> list[float]:
    """Return the seconds of drafting of each round; of the first, in which a drafter
    also reads the prompt, the mean of the others.
    """
    seconds = [one.propose_ms / MILLI for one in rounds]
    return [fmean(seconds[1:]), *seconds[1:]] if len(seconds) > 1 else seconds
