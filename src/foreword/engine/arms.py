"""One speculator that is several: in every round it gives the sequences to the arm that
takes the least time per token (budget/choice.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter

from jaxtyping import Float
from torch import Tensor

from foreword.budget import Costs, DraftBudget, FixedBudget
from foreword.budget.choice import SHARE, Choice, OnText, Ratios
from foreword.draft.base import Drafter
from foreword.draft.none import NoDrafter
from foreword.engine.scheduler import ScheduledSequence
from foreword.engine.speculator import Speculator, select_layers
from foreword.engine.sub_batch import SubBatch
from foreword.estimators import running_mean
from foreword.model import Model, measure
from foreword.types import Batch, DraftTree, Request
from foreword.verify import Rule

SHADOW_NODES = 8
"""Draft tokens of a draft that is scored and not verified."""


class Arm(Speculator):
    """One method with a budget of its own, among several."""

    def __init__(
        self, team: Arms, number: int, drafter: Drafter, budget: DraftBudget
    ) -> None:
        super().__init__(team.target, drafter, team.rule, budget)
        # noise that one arm has computed serves the others
        self.draws = team.draws
        self.verifier = team.verifier
        self.team = team
        self.number = number

    def settle(
        self, sub_batch: SubBatch, wrote: int, drafted: int, reading: int
    ) -> None:
        if sub_batch.drafting and not reading:
            self.team.learn(self.number, sub_batch, wrote, drafted)


@dataclass(slots=True)
class _Shadow:
    """A draft that was not verified, and how far the text has followed it."""

    tree: DraftTree
    read: int
    """Tokens of the text that were compared, or were there before."""
    seconds: float
    """Time of drafting it."""
    node: int = -1
    accepted: int = 0

    def follow(self, tokens: Sequence[int]) -> bool:
        """Follow the text, and return whether it has left the draft."""
        children_by_token = self.tree.children_by_token()
        for token in tokens[self.read :]:
            child = children_by_token.get(self.node, {}).get(token)
            if child is None:
                return True
            self.node = child
            self.accepted += 1
        self.read = len(tokens)
        return not children_by_token.get(self.node)


@dataclass(slots=True)
class _Text:
    """What is known of one sequence."""

    sort: tuple[bool, bool]
    """(greedy, plain)."""
    by_arm: list[OnText]
    arm: int = -1
    """The arm in use."""
    choice: Choice | None = None
    """The choice of its last round."""
    bits: int = 0
    """Bits of the number of sequences in that round."""
    drafts: dict[int, _Shadow] = field(default_factory=dict)
    """By arm: the draft being scored."""
    turn: int = 0
    """Arms draft in turn, one a round."""

    @property
    def ratios(self) -> list[float]:
        return [one.ratio for one in self.by_arm]


class Arms(Speculator):
    """Chooses among the arms of a drafter, and plain decoding, by measured time.

    Sequences sampled alike share an arm, so that they share its forwards too. Under
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
        self._lookups = [arm for arm in self.arms if arm.drafter.looks_up]
        self._choices: dict[tuple[tuple[bool, bool], int], Choice] = {}
        """By (greedy, plain) and bits of the number of sequences."""
        self._texts: dict[int, _Text] = {}
        self._used: list[Arm] = []
        """Arms of the last round."""
        self._overhead = 0.0
        """Seconds of verify and commit per sequence in a round without draft tokens."""
        self._spare = 0.0
        """Seconds that drafts to be scored may take now."""

    @property
    def failed(self) -> str | None:
        failed = (one.failed for one in self.arms if one.failed)
        return next(failed, None)

    # ---- choose

    def begin(self, scheduled: Sequence[ScheduledSequence]) -> list[SubBatch]:
        writing = [entry for entry in scheduled if entry.writes]
        bits = len(writing).bit_length()
        if bits == 1 and self._is_settled(writing[0].sequence):
            # the usual case, in microseconds
            return self._used[0].begin(writing)
        kinds: dict[int, tuple[Choice, list[ScheduledSequence]]] = {}
        for entry in writing:
            text = self._text(entry.sequence, bits)
            if text.drafts or self._spare > 0:
                self._score(entry.sequence, text, bits)
            choice = self._choice(text, bits)
            _, alike = kinds.setdefault(id(choice), (choice, []))
            alike.append(entry)
        groups: dict[int, list[ScheduledSequence]] = {}
        for choice, entries in kinds.values():
            arm = choice.decide(partial(self._ratios, entries))
            groups.setdefault(arm, []).extend(entries)
            for entry in entries:
                self._texts[entry.sequence.id].arm = arm
        self._used = [self.arms[arm] for arm in groups]
        return [
            sub_batch
            for arm, group in groups.items()
            for sub_batch in self.arms[arm].begin(group)
        ]

    def _is_settled(self, sequence: Request) -> bool:
        """Whether a sequence alone in its round keeps its arm, and none is scored."""
        text = self._texts.get(sequence.id)
        return (
            text is not None
            and text.choice is not None
            and text.bits == 1
            and text.choice.left > 0
            and not text.drafts
            and self._spare <= 0
            and self._used == [self.arms[text.arm]]
        )

    def _choice(self, text: _Text, bits: int) -> Choice:
        """Return the choice of a kind; a new kind starts from the most alike."""
        if text.choice is not None and text.bits == bits:
            return text.choice
        kind = (text.sort, bits)
        found = self._choices.get(kind)
        if found is None:
            found = Choice(len(self.arms), self._plain)
            if self._choices:
                alike = min(
                    self._choices,
                    key=lambda one: (
                        one[0] != kind[0],
                        abs(one[1] - kind[1]),
                    ),
                )
                found.start_from(self._choices[alike])
            self._choices[kind] = found
        text.choice = found
        text.bits = bits
        return found

    def _ratios(self, entries: Sequence[ScheduledSequence]) -> Ratios:
        return [self._texts[entry.sequence.id].ratios for entry in entries]

    def _text(self, sequence: Request, bits: int) -> _Text:
        text = self._texts.get(sequence.id)
        if text is None:
            params = sequence.params
            by_arm = [OnText() for _ in self.arms]
            text = _Text((params.greedy, params.plain), by_arm)
            self._texts[sequence.id] = text
            self._choice(text, bits).begin_text()
        return text

    # ---- learn

    def learn(self, arm: int, sub_batch: SubBatch, wrote: int, drafted: int) -> None:
        """Learn from a round of an arm: `wrote` sequences and `drafted` draft tokens in
        its forward; other arms may share it.
        """
        bits = wrote.bit_length()
        sequences = sub_batch.batch.sequences
        texts = [self._texts[one.id] for one in sequences]
        choices = {one.sort: self._choice(one, bits) for one in texts}
        if arm == self._plain:
            for choice in choices.values():
                choice.pass_plain()
            return
        spent = self._spent(sub_batch, wrote, drafted)
        tokens = [len(path) + 1 for path in sub_batch.verdict.kept]
        for sort, choice in choices.items():
            alike = [
                count
                for text, count in zip(texts, tokens, strict=True)
                if text.sort == sort
            ]
            choice.learn(arm, sum(alike) / len(alike), spent)
        for text, count in zip(texts, tokens, strict=True):
            pace = choices[text.sort].pace(arm)
            text.by_arm[arm].add(count, spent * pace)

    def _spent(self, sub_batch: SubBatch, wrote: int, drafted: int) -> float:
        """Return the time of a round, in rounds of the same batch without draft tokens:
        both as fast as the machine is now.
        """
        clock, costs = sub_batch.clock, self._costs
        own = sum(map(len, sub_batch.draft.trees))
        sequences = len(sub_batch.scheduled)
        after = clock.verify + clock.commit
        if not own:
            each = after / sequences
            self._overhead = running_mean(self._overhead, each)
        if self._own_costs:
            costs.correct(wrote + drafted, clock.score)
        pace = clock.score / costs.seconds(wrote + drafted)
        overhead = min(sequences * self._overhead, after)
        plain = pace * costs.seconds(wrote) + overhead
        scoring = pace * costs.seconds(wrote + own)
        return (clock.propose + scoring + after) / plain

    def _score(self, sequence: Request, text: _Text, bits: int) -> None:
        """Score the arms that look up their draft tokens on what the arm in use has
        written, and draft ahead with one of them.
        """
        before = perf_counter()
        for number, draft in list(text.drafts.items()):
            if draft.follow(sequence.tokens):
                del text.drafts[number]
                self._record(text, number, draft, bits)
        free = [
            arm
            for arm in self._lookups
            if arm not in self._used and arm.number not in text.drafts
        ]
        if free and self._spare > 0:
            text.turn += 1
            next_arm = free[text.turn % len(free)]
            self._draft_ahead(next_arm, sequence, text)
        self._spare -= perf_counter() - before

    def _draft_ahead(self, arm: Arm, sequence: Request, text: _Text) -> None:
        before = perf_counter()
        context = self.target.context
        batch = Batch((sequence,), self.draws, context=context)
        with arm.failures.contained(sequence):
            draft = arm.drafter.propose(batch, [SHADOW_NODES])
            took = perf_counter() - before
            tree, read = draft.trees[0], len(sequence.tokens)
            text.drafts[arm.number] = _Shadow(tree, read, took)

    def _record(self, text: _Text, arm: int, draft: _Shadow, bits: int) -> None:
        """Record what a draft would have gained in a round of its own."""
        costs = self._costs
        plain = costs.seconds(1)
        rows = 1 + len(draft.tree)
        longer = costs.seconds(rows) - plain + draft.seconds
        spent = 1.0 + longer / (plain + self._overhead)
        scored = self._choice(text, bits).scored[arm]
        tokens = draft.accepted + 1
        scored.add(tokens, spent)
        text.by_arm[arm].add(tokens, spent * scored.pace)

    # ---- what the engine passes on

    def on_hidden_states(
        self, sequence: Request, start: int, hidden: Float[Tensor, "tokens features"]
    ) -> None:
        for arm in self.arms:
            layers = arm.drafter.hidden_layers
            if layers:
                captured = self.drafter.hidden_layers
                states = select_layers(hidden, captured, layers)
                arm.on_hidden_states(sequence, start, states)

    def rest(self, took: float) -> None:
        self._spare = min(self._spare + SHARE * took, took)
        for arm in self._used:
            arm.rest(took)

    def release(self, sequence: Request) -> None:
        self._texts.pop(sequence.id, None)
        for arm in self.arms:
            arm.release(sequence)

    def forget(self, sequence: Request) -> None:
        text = self._texts.get(sequence.id)
        if text is not None:
            text.drafts.clear()
        for arm in self.arms:
            arm.forget(sequence)
