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
        self.team = team
        self.number = number

    def settle(
        self, sub_batch: SubBatch, wrote: int, drafted: int, reading: int
    ) -> None:
        super().settle(sub_batch, wrote, drafted, reading)
        if not reading:
            self.team.learn(self.number, sub_batch, wrote, drafted)


@dataclass(slots=True)
class _Text:
    """What is known of one sequence."""

    seen: int
    """Tokens at the start of the last round."""
    by_arm: list[OnText]
    drafts: dict[int, _Shadow] = field(default_factory=dict)
    """By arm: the draft being scored."""
    turn: int = 0
    """Arms draft in turn, one a round."""

    @property
    def ratios(self) -> list[float]:
        return [one.ratio for one in self.by_arm]


@dataclass(slots=True)
class _Shadow:
    """A draft that was not verified, and how far the text has followed it."""

    tree: DraftTree
    seconds: float
    """Time of drafting it."""
    node: int = -1
    accepted: int = 0

    def follow(self, tokens: Sequence[int]) -> bool:
        """Follow the text, and return whether it has left the draft."""
        children_by_token = self.tree.children_by_token()
        for token in tokens:
            child = children_by_token.get(self.node, {}).get(token)
            if child is None:
                return True
            self.node = child
            self.accepted += 1
        return not children_by_token.get(self.node)


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
            Arm(self, number, one, budget.anew() if number else budget)
            for number, one in enumerate(drafter.arms)
        ]
        self._plain = len(self.arms)
        self.arms.append(Arm(self, self._plain, NoDrafter(), FixedBudget(0)))
        self._own_costs = budget.shared_costs is None
        self._costs = budget.shared_costs or Costs(measure(target))
        self._choices: dict[tuple[bool, bool, int], Choice] = {}
        """By (greedy, plain, bits of the number of sequences)."""
        self._texts: dict[int, _Text] = {}
        self._used: list[Arm] = []
        """Arms of the last round."""
        self._overhead = 0.0
        """Seconds of verify and commit per sequence in a round without draft tokens."""
        self._spare = 0.0
        """Seconds that drafts to be scored may take now."""

    @property
    def failed(self) -> str | None:
        return next((one.failed for one in self.arms if one.failed), None)

    # ---- choose

    def begin(self, scheduled: Sequence[ScheduledSequence]) -> list[SubBatch]:
        writing = [entry for entry in scheduled if entry.writes]
        bits = len(writing).bit_length()
        kinds: dict[tuple[bool, bool, int], list[Request]] = {}
        for entry in writing:
            sequence = entry.sequence
            self._score(sequence, bits)
            kinds.setdefault(_kind(sequence, bits), []).append(sequence)
        chosen = {
            kind: self._choice(kind).decide(partial(self._ratios, sequences))
            for kind, sequences in kinds.items()
        }
        groups: dict[int, list[ScheduledSequence]] = {}
        for entry in writing:
            arm = chosen[_kind(entry.sequence, bits)]
            groups.setdefault(arm, []).append(entry)
        self._used = [self.arms[arm] for arm in groups]
        return [
            sub_batch
            for arm, group in groups.items()
            for sub_batch in self.arms[arm].begin(group)
        ]

    def _choice(self, kind: tuple[bool, bool, int]) -> Choice:
        """Return the choice of a kind; a new kind starts from the most alike."""
        if kind not in self._choices:
            alike = sorted(
                self._choices,
                key=lambda one: (one[:2] != kind[:2], abs(one[2] - kind[2])),
            )
            choice = Choice(len(self.arms), self._plain)
            if alike:
                choice.start_from(self._choices[alike[0]])
            self._choices[kind] = choice
        return self._choices[kind]

    def _ratios(self, sequences: Sequence[Request]) -> Ratios:
        return [self._text(sequence).ratios for sequence in sequences]

    def _text(self, sequence: Request) -> _Text:
        text = self._texts.get(sequence.id)
        if text is None:
            by_arm = [OnText() for _ in self.arms]
            text = self._texts[sequence.id] = _Text(len(sequence.tokens), by_arm)
        return text

    # ---- learn

    def learn(self, arm: int, sub_batch: SubBatch, wrote: int, drafted: int) -> None:
        """Learn from a round of an arm: `wrote` sequences and `drafted` draft tokens in
        its forward, of which some may be of other arms.
        """
        clock, costs = sub_batch.clock, self._costs
        own = sum(map(len, sub_batch.draft.trees))
        sequences = sub_batch.batch.sequences
        after = clock.verify + clock.commit
        if not own:
            self._overhead = running_mean(self._overhead, after / len(sequences))
        if self._own_costs:
            costs.correct(wrote + drafted, clock.score)
        row = clock.score / costs.seconds(wrote + drafted)
        overhead = min(len(sequences) * (self._overhead or 1.0), after)
        plain = row * costs.seconds(wrote) + overhead
        spent = (clock.propose + row * costs.seconds(wrote + own) + after) / plain
        tokens = [len(path) + 1 for path in sub_batch.verdict.kept]
        bits = wrote.bit_length()
        pace = 1.0
        for kind in {_kind(sequence, bits) for sequence in sequences}:
            alike = [
                count
                for sequence, count in zip(sequences, tokens, strict=True)
                if _kind(sequence, bits) == kind
            ]
            choice = self._choice(kind)
            choice.learn(arm, sum(alike) / len(alike), spent)
            pace = choice.pace(arm)
        for sequence, count in zip(sequences, tokens, strict=True):
            self._text(sequence).by_arm[arm].add(count, spent * pace)

    def _score(self, sequence: Request, bits: int) -> None:
        """Score the arms that look up their draft tokens on what the arm in use has
        written, and have them draft what comes next.
        """
        text = self._text(sequence)
        new = sequence.tokens[text.seen :]
        text.seen = len(sequence.tokens)
        for arm, draft in list(text.drafts.items()):
            if draft.follow(new):
                del text.drafts[arm]
                self._record(sequence, arm, draft, bits)
        free = [
            arm
            for arm in self.arms
            if arm.drafter.looks_up
            and arm not in self._used
            and arm.number not in text.drafts
        ]
        if free and self._spare > 0:
            text.turn += 1
            self._draft_ahead(free[text.turn % len(free)], sequence, text)

    def _draft_ahead(self, arm: Arm, sequence: Request, text: _Text) -> None:
        before = perf_counter()
        batch = Batch((sequence,), self.draws, context=self.target.context)
        with arm.failures.contained(sequence):
            draft = arm.drafter.propose(batch, [SHADOW_NODES])
            took = perf_counter() - before
            text.drafts[arm.number] = _Shadow(draft.trees[0], took)
        self._spare -= perf_counter() - before

    def _record(self, sequence: Request, arm: int, draft: _Shadow, bits: int) -> None:
        """Record what a draft would have gained in a round of its own."""
        costs = self._costs
        plain = costs.seconds(1) + self._overhead
        longer = costs.seconds(1 + len(draft.tree)) - costs.seconds(1) + draft.seconds
        spent = 1.0 + longer / plain
        scored = self._choice(_kind(sequence, bits)).scored[arm]
        tokens = draft.accepted + 1
        scored.add(tokens, spent)
        self._text(sequence).by_arm[arm].add(tokens, spent * scored.pace)

    # ---- what the engine passes on

    def on_hidden_states(
        self, sequence: Request, start: int, hidden: Float[Tensor, "tokens features"]
    ) -> None:
        for arm in self.arms:
            layers = arm.drafter.hidden_layers
            if layers:
                states = select_layers(hidden, self.drafter.hidden_layers, layers)
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


def _kind(sequence: Request, bits: int) -> tuple[bool, bool, int]:
    return sequence.params.greedy, sequence.params.plain, bits
