"""One speculator that is several: in every round it gives the requests to the arm that
takes the least time per token (budget/choice.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from jaxtyping import Float
from torch import Tensor

from foreword.budget import Costs, DraftBudget, FixedBudget
from foreword.budget.choice import Choice, OnText, Ratios
from foreword.budget.kept import kind_name
from foreword.draft.base import Drafter
from foreword.draft.none import NoDrafter
from foreword.engine.arms.scores import ArmScores
from foreword.engine.arms.text import ArmsText, Kind
from foreword.engine.failures import Failures
from foreword.engine.scheduler import ScheduledRequest
from foreword.engine.speculator import Speculator, kept_speeds, select_layers
from foreword.engine.sub_batch import SubBatch
from foreword.estimators import running_mean
from foreword.model import Model, measure
from foreword.registry import PLAIN
from foreword.types import Request
from foreword.verify import Rule

CORRECTED = 4
"""Rounds of plain decoding for one correction of the table of costs, which takes 1% of
the shortest rounds.
"""


class _ArmFailures(Failures):
    """Failures of one drafter among several: the others go on with the request."""

    def __init__(self, missing: str | None) -> None:
        super().__init__(missing)
        self.off: set[int] = set()
        """Ids of the requests that this drafter is off for."""

    def is_off(self, request: Request) -> bool:
        return request.id in self.off or super().is_off(request)

    def turn_off(self, request: Request) -> None:
        self.off.add(request.id)


class Arm(Speculator):
    """One method with a budget of its own, among several."""

    def __init__(
        self,
        team: Arms,
        number: int,
        drafter: Drafter,
        budget: DraftBudget,
    ) -> None:
        super().__init__(team.target, drafter, team.rule, budget)
        # noise that one arm has computed serves the others
        self.draws = team.draws
        self.verifier = team.verifier
        self.failures = _ArmFailures(drafter.missing)
        self.team = team
        self.number = number

    def release(self, request: Request) -> None:
        self.failures.off.discard(request.id)
        super().release(request)

    def settle(
        self,
        sub_batch: SubBatch,
        wrote: int,
        drafted: int,
        reading: int,
    ) -> None:
        if sub_batch.drafting and not reading:
            self.team.learn(self.number, sub_batch, wrote, drafted)


class Arms(Speculator):
    """Chooses among the arms of a drafter, and plain decoding, by measured time.

    Requests sampled alike share an arm, so that they share its forwards too. Under
    `match` a switch changes no text; other rules keep the distribution, since the
    choice depends on past rounds alone.
    """

    def __init__(
        self, target: Model, drafter: Drafter, rule: Rule, budget: DraftBudget
    ) -> None:
        super().__init__(target, drafter, rule, budget)
        self.arms = [
            Arm(self, number, one, budget.anew())
            for number, one in enumerate(drafter.arms)
        ]
        self._plain = len(self.arms)
        plain = Arm(self, self._plain, NoDrafter(), FixedBudget(0))
        self.arms.append(plain)
        self._own_costs = budget.shared_costs is None
        self._costs = budget.shared_costs or Costs(measure(target))
        self._scores = ArmScores(self.arms[:-1], self._costs)
        self._choices: dict[Kind, Choice] = {}
        self._labels = drafter.labels
        self._kept = None
        if self._labels:
            self._kept = kept_speeds(target)
        self._texts: dict[int, ArmsText] = {}
        self._used: list[Arm] = []
        """Arms of the last round."""
        self._overhead = 0.0
        """Seconds of verify and commit per request in a round without draft tokens."""

    @property
    def failed(self) -> str | None:
        failed = (one.failed for one in self.arms if one.failed)
        return next(failed, None)

    # ---- choose

    def begin(self, scheduled: Sequence[ScheduledRequest]) -> list[SubBatch]:
        writing = [entry for entry in scheduled if entry.writes]
        bits = len(writing).bit_length()
        if bits == 1 and self._is_settled(writing[0].request):
            # the usual case, in microseconds
            return self._used[0].begin(writing)
        kinds: dict[int, tuple[Choice, list[ScheduledRequest]]] = {}
        for entry in writing:
            text = self._text(entry.request, bits)
            choice = self._choice(text, bits)
            if text.drafts or self._scores.spare > 0:
                used = {arm.number for arm in self._used}
                self._scores.score(entry.request, text, choice, used)
            _, alike = kinds.setdefault(id(choice), (choice, []))
            alike.append(entry)
        groups: dict[int, list[ScheduledRequest]] = {}
        for choice, entries in kinds.values():
            broken = self._broken(entries)
            if len(broken) == self._plain:
                for entry in entries:
                    one = entry.request
                    one.undrafted = one.undrafted or self.failed
            arm = choice.decide(partial(self._ratios, entries), broken)
            groups.setdefault(arm, []).extend(entries)
            for entry in entries:
                self._use(arm, entry.request)
        self._used = [self.arms[arm] for arm in groups]
        return [
            sub_batch
            for arm, group in groups.items()
            for sub_batch in self.arms[arm].begin(group)
        ]

    def _use(self, arm: int, request: Request) -> None:
        """Use an arm for a request in this round."""
        text = self._texts[request.id]
        text.switched = text.arm not in (arm, -1)
        if text.arm != arm:
            self._count(text, request)
            text.arm = arm

    def _count(self, text: ArmsText, request: Request) -> None:
        """Count the tokens since the last switch as written by the arm in use."""
        wrote = len(request.tokens) - max(text.since, request.prompt)
        text.since = len(request.tokens)
        if wrote > 0 and self.drafter.names:
            name = (*self.drafter.names, PLAIN)[text.arm]
            by_method = request.stats.by_method
            by_method[name] = by_method.get(name, 0) + wrote

    def _is_settled(self, request: Request) -> bool:
        """Whether a request alone in its round keeps its arm, and none is scored."""
        text = self._texts.get(request.id)
        return (
            text is not None
            and text.choice is not None
            and text.bits == 1
            and text.choice.left > 0
            and self._scores.spare <= 0
            and self._used == [self.arms[text.arm]]
            and not self._used[0].failures.off
        )

    def _choice(self, text: ArmsText, bits: int) -> Choice:
        """Return the choice of a kind; a new kind starts from the most alike."""
        if text.choice is not None and text.bits == bits:
            return text.choice
        kind = (text.sort, bits)
        found = self._choices.get(kind)
        if found is None:
            found = self._choices[kind] = self._new_choice(kind)
        text.choice = found
        text.bits = bits
        return found

    def _new_choice(self, kind: Kind) -> Choice:
        """Return a choice that begins with what is kept, or what the most alike kind
        has shown.
        """
        choice = Choice(len(self.arms), self._plain)
        if self._kept is not None:
            name = self._name(kind)
            paces = [self._kept.pace(name, label) for label in self._labels]
            if any(paces):
                choice.recall(paces)
                return choice
        if self._choices:
            alike = min(self._choices, key=partial(_distance, kind))
            choice.start_from(self._choices[alike])
        return choice

    def _name(self, kind: Kind) -> str:
        return kind_name(self.rule.name, self.budget.label, *kind)

    def _keep(self, text: ArmsText) -> None:
        """Keep what the choice of a text that has ended knows of each arm."""
        choice = text.choice
        if self._kept is None or choice is None:
            return
        name = self._name((text.sort, text.bits))
        for arm, label in enumerate(self._labels):
            if choice.known(arm):
                self._kept.record(name, label, choice.pace(arm))

    def _ratios(self, entries: Sequence[ScheduledRequest]) -> Ratios:
        return [
            [one.ratio for one in self._texts[entry.request.id].by_arm]
            for entry in entries
        ]

    def _broken(self, entries: Sequence[ScheduledRequest]) -> list[int]:
        """Return the arms that have failed on one of these requests, or are paused."""
        return [
            arm.number
            for arm in self.arms[: self._plain]
            if arm.failures.is_paused
            or (
                arm.failures.off
                and any(arm.failures.is_off(entry.request) for entry in entries)
            )
        ]

    def _text(self, request: Request, bits: int) -> ArmsText:
        text = self._texts.get(request.id)
        if text is None:
            params = request.params
            by_arm = [OnText() for _ in self.arms]
            text = ArmsText((params.greedy, params.plain), by_arm)
            self._texts[request.id] = text
            self._choice(text, bits).begin_text()
        return text

    # ---- learn

    def learn(self, arm: int, sub_batch: SubBatch, wrote: int, drafted: int) -> None:
        """Learn from a round of an arm: `wrote` requests and `drafted` draft tokens in
        its forward; other arms may share it.
        """
        requests = sub_batch.batch.requests
        if arm == self._plain and wrote == 1:
            # the usual case, in microseconds
            choice = self._texts[requests[0].id].choice
            if choice is not None:
                choice.pass_plain()
                if choice.left % CORRECTED == 0:
                    self._costs.correct(1, sub_batch.clock.score)
            return
        bits = wrote.bit_length()
        texts = [self._texts[one.id] for one in requests]
        choices = {one.sort: self._choice(one, bits) for one in texts}
        if arm == self._plain:
            for choice in choices.values():
                choice.pass_plain()
            if not drafted:
                self._costs.correct(wrote, sub_batch.clock.score)
            return
        drafting, spent = self._spent(sub_batch, wrote, drafted)
        own = sum(map(len, sub_batch.draft.trees))
        tokens = [len(path) + 1 for path in sub_batch.verdict.kept]
        for sort, choice in choices.items():
            alike = [
                (count, text.switched)
                for text, count in zip(texts, tokens, strict=True)
                if text.sort == sort
            ]
            mean = sum(count for count, _ in alike) / len(alike)
            catches_up = any(switched for _, switched in alike)
            choice.learn(arm, mean, spent, catches_up=catches_up)
            if own and not catches_up:
                choice.drafting[arm].add(own / len(texts), drafting)
        for text, count in zip(texts, tokens, strict=True):
            if not text.switched:
                pace = choices[text.sort].pace(arm)
                text.by_arm[arm].add(count, spent * pace)
            text.switched = False

    def _spent(
        self, sub_batch: SubBatch, wrote: int, drafted: int
    ) -> tuple[float, float]:
        """Return the time of drafting and of the whole round, in rounds of the same
        batch without draft tokens: both as fast as the machine is now.
        """
        clock, costs = sub_batch.clock, self._costs
        own = sum(map(len, sub_batch.draft.trees))
        requests = len(sub_batch.scheduled)
        after = clock.verify + clock.commit
        if not own:
            each = after / requests
            self._overhead = running_mean(self._overhead, each)
            self._scores.overhead = self._overhead
        if self._own_costs:
            costs.correct(wrote + drafted, clock.score)
        pace = clock.score / costs.seconds(wrote + drafted)
        overhead = min(requests * self._overhead, after)
        plain = pace * costs.seconds(wrote) + overhead
        scoring = pace * costs.seconds(wrote + own)
        whole = clock.propose + scoring + after
        return clock.propose / plain, whole / plain

    # ---- what the engine passes on

    def on_hidden_states(
        self, request: Request, start: int, hidden: Float[Tensor, "tokens features"]
    ) -> None:
        for arm in self.arms:
            layers = arm.drafter.hidden_layers
            if layers:
                captured = self.drafter.hidden_layers
                states = select_layers(hidden, captured, layers)
                arm.on_hidden_states(request, start, states)

    def rest(self, took: float) -> None:
        self._scores.save_up(took)
        for arm in self.arms:
            if arm in self._used:
                arm.rest(took)
            else:
                arm.failures.count_down()

    def release(self, request: Request) -> None:
        text = self._texts.pop(request.id, None)
        if text is not None:
            self._count(text, request)
            self._keep(text)
        for arm in self.arms:
            arm.release(request)

    def forget(self, request: Request) -> None:
        text = self._texts.get(request.id)
        if text is not None:
            text.drafts.clear()
        for arm in self.arms:
            arm.forget(request)


def _distance(one: Kind, other: Kind) -> tuple[bool, int]:
    """Return how unlike two kinds are; first, whether they are sampled differently."""
    (sort, bits), (other_sort, other_bits) = one, other
    return sort != other_sort, abs(bits - other_bits)
