"""A speculator of several methods: in each round it gives the requests to the one that
should write them fastest, or to plain decoding (budget/choice.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from foreword.budget import AdaptiveBudget, Costs, DraftBudget, FixedBudget
from foreword.budget.choice import TRIAL, Choice, Kind, Sort, Text
from foreword.draft.base import Drafter
from foreword.draft.ensemble.auto import AutoDrafter
from foreword.draft.none import NoDrafter
from foreword.engine.choices import Choices
from foreword.engine.member import Member, budget_of
from foreword.engine.reading import Reader
from foreword.engine.round_prices import RoundPrices, RoundRows
from foreword.engine.scheduler import ScheduledRequest
from foreword.engine.speculator import (
    Speculator,
    kept_states,
    select_layers,
)
from foreword.engine.sub_batch import SubBatch
from foreword.model import Mode, Model, measure
from foreword.registry import PLAIN
from foreword.types import Request
from foreword.types.round import Reason, short
from foreword.verify import Rule

if TYPE_CHECKING:
    from foreword.engine.looking import Looker

CORRECTED = 4
"""Plain rounds for one correction of the costs, which takes 1% of the shortest ones."""


@dataclass(slots=True)
class _Entry:
    """What a chooser knows of one request."""

    sort: Sort
    kind: Kind
    choice: Choice
    text: Text
    by_member: dict[int, int] = field(default_factory=dict)
    """Tokens of the text that each member's drafter has read."""
    since: int = 0
    """Tokens of the text when the method in use came into use."""


class Chooser(Speculator):
    """Chooses among the members of a drafter, and plain decoding.

    Requests sampled alike choose together, so that they share forwards; a draft that
    was looked up for one of them is that one's alone. Under `match` the choice changes
    no text; other rules keep the distribution, since it depends on past rounds and on
    tokens that were copied, never on sampled ones.
    """

    def __init__(
        self, target: Model, drafter: Drafter, rule: Rule, budget: DraftBudget
    ) -> None:
        super().__init__(target, drafter, rule, budget)
        several = isinstance(drafter, AutoDrafter)
        drafters = drafter.members if several else (drafter,)
        self.names = (*drafter.names, PLAIN) if several and drafter.names else ()
        """Names of the members and of plain decoding; empty for one method."""
        self.members = [
            Member(self, number, one, budget_of(one, budget, alone=one is drafter))
            for number, one in enumerate(drafters)
        ]
        count = len(self.members)
        self._plain = Member(self, count, NoDrafter(), FixedBudget(0))
        choices: dict[Kind, Choice] = {}
        if isinstance(budget, AdaptiveBudget):
            # they outlive an engine
            costs, choices = budget.costs, budget.choices
        else:
            costs = Costs(measure(target))
        self.prices = RoundPrices(costs)
        self._reader = Reader(self.members)
        self._looker = _looker(self.members)
        self._choices = Choices(
            choices,
            (count, self._looker.lookups if self._looker else ()),
            [one.label for one in drafters],
            kept_states(target),
            (rule.name, budget.label),
        )
        self._entries: dict[int, _Entry] = {}
        self._used: list[Member] = []
        """Members of the last round."""

    @property
    def failed(self) -> str | None:
        errors = [member.failed for member in self.members]
        return next(filter(None, errors), None)

    # ---- choose

    def begin(self, scheduled: Sequence[ScheduledRequest]) -> list[SubBatch]:
        writing = [entry for entry in scheduled if entry.writes]
        if len(writing) == 1 and self._stays(writing[0].request):
            # the usual case, in microseconds
            return self._used[0].begin(writing)
        bits = len(writing).bit_length()
        kinds: dict[Kind, list[ScheduledRequest]] = {}
        for entry in writing:
            kind = self._entry(entry.request, bits).kind
            kinds.setdefault(kind, []).append(entry)
        groups: dict[int, list[ScheduledRequest]] = {}
        for kind, entries in kinds.items():
            choice = self._choices.of(kind)
            numbers = self._numbers(choice, entries, len(writing))
            for entry, number in zip(entries, numbers, strict=True):
                groups.setdefault(number, []).append(entry)
                self._use(number, entry.request)
        everyone = [*self.members, self._plain]
        self._used = [everyone[number] for number in groups]
        return [
            sub_batch
            for number, group in groups.items()
            for sub_batch in everyone[number].begin(group)
        ]

    def _numbers(
        self, choice: Choice, scheduled: Sequence[ScheduledRequest], texts: int
    ) -> list[int]:
        """Return the member for each of these requests, which are of one kind."""
        requests = [entry.request for entry in scheduled]
        out = self._out(requests)
        if len(out) == self._plain.number:
            for request in requests:
                request.undrafted = request.undrafted or self.failed
        entries = [self._entries[request.id] for request in requests]
        plain = self.prices.plain_seconds(texts)
        looker = self._looker
        choice.row = self.prices.row(texts)
        unread = partial(self._unread, requests)
        out += looker.lookups if looker else []
        written = [entry.text for entry in entries]
        number = choice.decide(written, unread, out)
        if number != self._plain.number:
            self._set_terms(number, choice, texts)
        numbers = [number] * len(requests)
        for at, entry in enumerate(entries):
            request, text = requests[at], entry.text
            better = None
            if looker:
                better = looker.look(request, choice, text, (texts, plain))
            if better is None:
                read = entry.by_member
                self._reader.read(request, choice, text, read, plain)
            else:
                numbers[at] = better
        return numbers

    def _set_terms(self, number: int, choice: Choice, texts: int) -> None:
        """Tell the budget of a member what draft tokens take and must earn."""
        budget = self.members[number].budget
        if isinstance(budget, AdaptiveBudget):
            budget.terms = self.prices.terms(choice, number, texts)

    def _stays(self, request: Request) -> bool:
        """Whether a request alone in its round keeps its method, and none is asked."""
        entry = self._entries.get(request.id)
        return (
            entry is not None
            and entry.kind[1] == 1
            and entry.choice.settled
            and entry.text.method == entry.choice.current
            and len(self._used) == 1
            and self._used[0].number == entry.text.method
            and not self._used[0].failures.off
            and self._rests(entry)
        )

    def stays_plain(self, request: Request) -> bool:
        """Whether the next round of a request alone is decoded plainly, as this one."""
        entry = self._entries[request.id]
        return entry.choice.stays_plain and self._rests(entry)

    def _rests(self, entry: _Entry) -> bool:
        """Whether nothing is looked up in the next round of a request alone."""
        if self._looker is None:
            return True
        plain = self.prices.plain_seconds(1)
        return self._looker.rests(entry.choice, entry.text, plain)

    def _unread(self, requests: Sequence[Request], number: int) -> int:
        """Return the tokens that a member must read before it drafts for them."""
        if self.members[number].looks_up:
            return 0
        total = 0
        for request in requests:
            entry = self._entries[request.id]
            total += len(request.tokens)
            total -= entry.by_member.get(number, 0)
        return total

    def _out(self, requests: Sequence[Request]) -> list[int]:
        """Return the members that are paused, or off for one of these requests."""
        return [
            member.number
            for member in self.members
            if member.failures.is_paused
            or any(member.failures.is_off(request) for request in requests)
        ]

    def _use(self, number: int, request: Request) -> None:
        """Use a member for a request in this round."""
        entry = self._entries[request.id]
        text = entry.text
        if text.method != number:
            self._count(entry, request)
            text.method = number

    def _count(self, entry: _Entry, request: Request) -> None:
        """Count the tokens since the last switch as written by the method in use."""
        wrote = len(request.tokens) - max(entry.since, request.prompt)
        entry.since = len(request.tokens)
        if wrote > 0 and self.names:
            name = self.names[entry.text.method]
            by_method = request.stats.by_method
            by_method[name] = by_method.get(name, 0) + wrote

    # ---- what is known of requests

    def _entry(self, request: Request, bits: int) -> _Entry:
        """Return what is known of a request in rounds of so many."""
        entry = self._entries.get(request.id)
        if entry is None:
            params = request.params
            sort = params.greedy, params.plain
            kind = sort, bits
            choice = self._choices.of(kind)
            entry = _Entry(sort, kind, choice, choice.begin())
            self._entries[request.id] = entry
        elif entry.kind[1] != bits:
            entry.kind = entry.sort, bits
            entry.choice = self._choices.of(entry.kind)
        return entry

    def nodes(self, request: Request, number: int) -> int:
        """Return the draft tokens with which a member should write a request."""
        entry = self._entries[request.id]
        return entry.choice.nodes(entry.text, number)

    def why_plain(self, request: Request) -> Reason:
        """Return why a request is decoded plainly."""
        if request.undrafted is not None:
            return "failed"
        if self.target.mode is Mode.PLAIN:
            return "target"
        missed = self._looker is not None and self._looker.missed(request)
        return "no-match" if missed else "budget"

    def speeds(self, request: Request, length: int) -> dict[str, float]:
        """Return `Round.speeds`; `length`: tokens of the text before the round."""
        entry = self._entries.get(request.id)
        if entry is None or not self.names:
            return {}
        speeds = dict(entry.choice.speeds)
        if self._looker:
            speeds |= self._looker.speeds(request, length)
        return {self.names[one]: short(speeds[one]) for one in speeds}

    # ---- learn

    def learn(
        self,
        member: Member,
        sub_batch: SubBatch,
        wrote: int,
        drafted: int,
        reading: int,
    ) -> None:
        """Learn from a round of a member: `wrote` requests, `drafted` draft tokens and
        `reading` prompt tokens in its forward; other members may share it.
        """
        requests = sub_batch.batch.requests
        if member is self._plain:
            if not (drafted or reading):
                self._learn_plain(sub_batch, wrote)
            return
        size = RoundRows(wrote, drafted, reading)
        clock, count = sub_batch.clock, len(requests)
        self.prices.learn(clock, size, count)
        nodes = sum(map(len, sub_batch.draft.trees))
        spent, proposed = self.prices.spent(clock, size, count, nodes)
        levels = sub_batch.levels
        paths = [len(path) for path in sub_batch.verdict.kept]
        kinds: dict[Kind, list[int]] = {}
        for row, request in enumerate(requests):
            kind = self._entries[request.id].kind
            kinds.setdefault(kind, []).append(row)
        for kind, rows in kinds.items():
            depths = [sub_batch.depths[row] for row in rows]
            unread = sum(
                self._learn_row(member, sub_batch, row, paths[row]) for row in rows
            )
            tokens = 1 + sum(paths[row] for row in rows) / len(rows)
            choice = self._choices.of(kind)
            depth = round(sum(depths) / len(rows))
            choice.learn(member.number, tokens, depth, spent, unread)
            if not unread:
                price = choice.prices[member.number]
                price.propose(levels, proposed)

    def _learn_row(
        self, member: Member, sub_batch: SubBatch, row: int, path: int
    ) -> int:
        """Learn what was accepted; return the tokens that the drafter had to read."""
        number = member.number
        request = sub_batch.batch.requests[row]
        entry = self._entries[request.id]
        unread = 0
        if not member.looks_up:
            lag = len(request.tokens) - path - 1
            lag -= entry.by_member.get(number, 0)
            # the end may have cut what was accepted
            unread = max(lag, 0)
        choice, text = entry.choice, entry.text
        depth = sub_batch.depths[row]
        accepted = min(path, depth)
        expected = choice.expected(text, number, depth)
        if self._looker and member.looks_up:
            self._looker.settle(request, number)
            tree = sub_batch.draft.trees[row]
            expected = sum(tree.probabilities) or expected
        choice.agreement[number].calibrate(expected, accepted)
        choice.saw(text, number, depth, accepted)
        entry.by_member[number] = len(request.tokens)
        return unread

    def _learn_plain(self, sub_batch: SubBatch, wrote: int) -> None:
        requests = sub_batch.batch.requests
        entries = [self._entries[request.id] for request in requests]
        for choice in dict.fromkeys(entry.choice for entry in entries):
            choice.pass_plain()
            streak = choice.streak
            if streak <= TRIAL or streak % CORRECTED == 0:
                self.prices.learn_plain(wrote, sub_batch.clock, streak)

    # ---- what the engine passes on

    def on_hidden_states(
        self, request: Request, start: int, hidden: Float[Tensor, "tokens features"]
    ) -> None:
        for member in self.members:
            layers = member.drafter.hidden_layers
            if layers:
                captured = self.drafter.hidden_layers
                states = select_layers(hidden, captured, layers)
                member.on_hidden_states(request, start, states)

    def rest(self, took: float) -> None:
        self._reader.save_up(took)
        if self._looker:
            self._looker.save_up(took)
        for member in self.members:
            if member in self._used:
                member.rest(took)
            else:
                member.failures.count_down()

    def release(self, request: Request) -> None:
        entry = self._entries.pop(request.id, None)
        if self._looker:
            self._looker.release(request)
        if entry is not None:
            self._count(entry, request)
            entry.choice.end(request.produced)
            self._choices.keep(entry.kind)
        for member in self.members:
            member.release(request)

    def forget(self, request: Request) -> None:
        entry = self._entries.get(request.id)
        if entry is not None:
            entry.by_member.clear()
        if self._looker:
            self._looker.release(request)
        for member in self.members:
            member.forget(request)


def _looker(members: Sequence[Member]) -> "Looker | None":
    """Return what looks drafts up, if a member does."""
    if not any(member.looks_up for member in members):
        return None
    from foreword.engine.looking import Looker

    return Looker(members)
