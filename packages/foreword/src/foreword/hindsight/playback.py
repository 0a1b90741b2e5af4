"""Plays a known answer with another drafter: rounds, drafts and the time of drafting
are real, and the target's forwards are left out.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.api.defaults import SAMPLED
from foreword.api.session import Session
from foreword.budget import FixedBudget
from foreword.draft import Drafter, MethodSpec
from foreword.draft import method as find_method
from foreword.engine import Engine
from foreword.engine.scheduler import Scheduler
from foreword.errors import InvalidRequest, ModelError
from foreword.hindsight.known_rule import RuleOnText, check_rule
from foreword.model import Model, Read
from foreword.model.kv.memories import Remembers
from foreword.model.kv.pages import PagePool
from foreword.recording import Recording
from foreword.registry import DEFAULT_RULE, RULES
from foreword.types import Request, Round, SamplingParams
from foreword.verify import rule
from foreword.wanted import check_wanted

SHAPING = (
    *SAMPLED,
    "logit_bias",
    "min_tokens",
    "max_tokens",
    "ignore_eos",
    "bad_word_ids",
    "allowed_token_ids",
    "prediction",
)
"""Parameters that shape a text or its drafts token by token. Stops are left out: where
the text ends is known.
"""


@dataclass(frozen=True, slots=True)
class Known:
    """An answer whose text is known, and the request that it answers."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    params: SamplingParams
    """With the seed; the noise that drafts share with the target comes from it."""
    checkable: bool = True
    """Whether the text follows from the seed: a rule that shares its noise wrote it, or
    the temperature is 0.
    """

    @property
    def text(self) -> list[int]:
        """Return the prompt and the answer."""
        return [*self.prompt, *self.answer]

    @classmethod
    def of(cls, recording: Recording) -> "Known":
        """Return a recording's answer. Raises InvalidRequest if it is empty."""
        answer = tuple(recording.tokens)
        if not answer:
            raise InvalidRequest(
                "cannot replay this recording: it holds no token. Record an answer "
                "with `foreword generate --record`"
            )
        values = {
            name: _frozen(value)
            for name, value in recording.params.items()
            if name in SHAPING
        }
        params = SamplingParams(seed=recording.seed, **values)
        shares = recording.rule in RULES and RULES[recording.rule].shares_noise
        checkable = shares or params.greedy
        return cls(recording.prompt_tokens, answer, params, checkable)


def _frozen(value: Any) -> Any:
    """Return a value of JSON as parameters have it: lists are tuples, keys numbers."""
    if isinstance(value, dict):
        return {int(name): one for name, one in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def emitted(rounds: Sequence[Round]) -> list[int]:
    """Return the tokens that rounds wrote, without those cut off by a stop or limit."""
    return [token for one in rounds for token in one.tokens]


@dataclass(frozen=True, slots=True)
class Played:
    """A known answer as another drafter would have written it."""

    rounds: tuple[Round, ...]
    """Their drafts, accepted nodes and milliseconds of drafting; without probabilities
    of the target, which did not run.
    """
    reread: bool
    """Whether the target read the text again: the drafter needs what it reads, or the
    rule its probabilities.
    """
    rule: str = DEFAULT_RULE
    refused: tuple[int, ...] = ()
    """Draft tokens of each round that are not in its draft: the rule refused them, and
    it is not known which they were.
    """


def needs_target(drafter: Drafter) -> bool:
    """Return whether a drafter reads more of the target than the text it wrote."""
    return bool(drafter.hidden_layers) or drafter.reads_target


def play(
    session: Session,
    known: Known,
    method: str,
    nodes: int,
    rule_name: str = DEFAULT_RULE,
) -> Played:
    """Play an answer with a method, a constant number of draft tokens, and a rule.

    Raises InvalidRequest if the session cannot draft so, or the rule cannot be
    replayed; ModelError if the drafter fails, or if the target is needed and writes
    another text here.
    """
    check_rule(rule_name)
    params = replace(known.params, method=method, nodes=nodes or None, trace=True)
    (request,) = session.prepare(list(known.prompt), params)
    drafter = _fresh(session, method, params)
    used = rule(rule_name)
    by_rule = None
    if not used.shares_noise:
        by_rule = RuleOnText(session.target, known.text, used, known.checkable)
        used = by_rule.rule
    elif not known.checkable and drafter.about.draws:
        raise InvalidRequest(
            f"cannot replay with {method} under {rule_name}: another rule wrote the "
            "answer, so its noise is not known. Name that rule"
        )
    sampled = by_rule is not None and drafter.about.draws and not params.greedy
    reread = needs_target(drafter) or sampled
    target = copy(session.target)
    if not reread:
        target.backend = KnownText(target, known.text)
    engine = Engine(target, drafter, used, FixedBudget(nodes), Scheduler(slots=1))
    if by_rule is not None:
        by_rule.install(engine.default)
    rounds = run(engine, session, request, tokens=len(known.answer))
    if engine.failed:
        raise ModelError(f"cannot replay with {method}: it failed: {engine.failed}")
    differs = by_rule is not None and by_rule.differs
    _check_text(method, rounds, known, differs=differs)
    if not sampled:
        return Played(tuple(map(_unscored, rounds)), reread, rule_name)
    refused = tuple(len(one.draft) - len(one.accepted) for one in rounds)
    rescored = (_unscored(_without_refused(one)) for one in rounds)
    return Played(tuple(rescored), reread, rule_name, refused)


def _check_text(
    method: str, rounds: Sequence[Round], known: Known, *, differs: bool
) -> None:
    """Raise ModelError if rounds wrote another text, or the target `differs`."""
    length = len(known.answer)
    if over := max(0, len(emitted(rounds)) - length):
        rounds[-1].pieces = rounds[-1].pieces[:-over]
    if differs or emitted(rounds) != list(known.answer):
        raise ModelError(
            f"cannot replay with {method}: the target's scores are needed, and the "
            "target writes another text here. Use the machine and the settings of the "
            "recording"
        )


def run(
    engine: Engine,
    session: Session,
    request: Request,
    most: int | None = None,
    tokens: int | None = None,
) -> list[Round]:
    """Run a traced request on an engine of its own beside the session's, for at most
    `most` rounds, or until it has so many tokens; other requests run between two
    rounds.
    """
    rounds: list[Round] = []
    with session.locked():
        engine.add(request)
    try:
        while not engine.idle:
            check_wanted()
            ended = tokens is not None and request.produced >= tokens
            if ended or (most is not None and len(rounds) >= most):
                break
            with session.locked():
                rounds += [delta.round for delta in engine.step() if delta.round]
    finally:
        if not engine.idle:
            with session.locked():
                engine.abort(request)
    return rounds


def _fresh(session: Session, method: str, params: SamplingParams) -> Drafter:
    """Return a drafter that has not seen the answer; InvalidRequest for an ensemble."""
    if isinstance(find_method(method), MethodSpec):
        raise InvalidRequest(
            f"cannot replay with {method!r}: its members may remember this answer. "
            "Name them one by one"
        )
    return session.drafter(params, fresh=True)


def _without_refused(round_: Round) -> Round:
    """Return a round of a chain with its accepted draft tokens alone."""
    round_.draft = round_.draft[: len(round_.accepted)]
    return round_


def _unscored(round_: Round) -> Round:
    """Return a round without probabilities of the target."""
    round_.draft = tuple(replace(token, target_prob=None) for token in round_.draft)
    round_.added = replace(round_.added, target_prob=None)
    return round_


CERTAIN = 1e4
"""Added to the logit of the next token, in nats: more than any noise, penalty or
temperature takes away.
"""


class KnownText(Remembers):
    """A backend without a model: no forward runs."""

    copies = True

    def __init__(self, target: Model, text: Sequence[int]) -> None:
        self.mode = target.mode
        self._shape = target.vocab, target.device
        self._text = list(text)

    @property
    def pool(self) -> PagePool | None:
        return None

    def open(
        self,
        id: int,
        capacity: int,
        tokens: Sequence[int] = (),
        tenant: str = "",
        layers: Sequence[int] = (),
    ) -> int:
        return 0

    def give(self, id: int, material: object) -> None:
        """Do nothing: what the text was written from is not read."""

    def close(self, id: int) -> None:
        """Do nothing: no request holds anything."""

    def move(self, id: int, source: list[int], start: int) -> None:
        """Do nothing, likewise."""

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        """Return logits that are certain of the known text, by position alone: what
        follows a refused draft token is never looked at.
        """
        vocab, device = self._shape
        tokens = [token for read in reads for token in self._next(read)]
        logits = torch.zeros(len(tokens), vocab, device=device, dtype=torch.float32)
        logits[range(len(tokens)), tokens] = CERTAIN
        return logits

    def _next(self, read: Read) -> list[int]:
        """Return the known token after each of the last `keep` tokens of a read."""
        last = len(self._text) - 1
        depths = read.depths[len(read.depths) - read.keep :]
        return [self._text[min(read.past + depth + 1, last)] for depth in depths]
