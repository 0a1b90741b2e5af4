"""What arms would have gained on the text that another one wrote."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from foreword.budget import Costs
from foreword.budget.choice import LEAD, SHARE, Choice
from foreword.engine.arms.text import ArmsText, ShadowDraft
from foreword.engine.speculator import Speculator
from foreword.types import Batch, Request

NODES = 8
"""Draft tokens of a draft that is scored and not verified."""
GAP = 16
"""Tokens that a draft model falls behind before it reads them to be scored: one forward
over so many takes little more than one over a few.
"""


class ArmScores:
    """Scores the arms that are not in use, within a share of the time.

    An arm that looks up its draft tokens drafts ahead, and the text follows its draft
    or not. A draft model reads what others wrote in one forward, which it has to read
    before its next draft anyway, and its choice after each token is compared with the
    text.
    """

    def __init__(self, arms: Sequence[Speculator], costs: Costs) -> None:
        self._arms = arms
        self._costs = costs
        self.overhead = 0.0
        """Seconds of verify and commit per request in a round without draft tokens."""
        self.spare = 0.0
        """Seconds that scoring may take now."""

    def save_up(self, took: float) -> None:
        """Grant a share of a round that took so many seconds."""
        self.spare = min(self.spare + SHARE * took, took)

    def score(
        self, request: Request, text: ArmsText, choice: Choice, used: set[int]
    ) -> None:
        """Record the drafts that the text has left, and let the next arm draft or read;
        arms take turns.
        """
        before = perf_counter()
        for number, draft in list(text.drafts.items()):
            if draft.follow(request.tokens):
                del text.drafts[number]
                self._record(text, number, draft, choice)
        free = [
            number
            for number, arm in enumerate(self._arms)
            if number not in used
            and number not in text.drafts
            and not arm.failures.is_off(request)
            and self._is_open(number, request, text, choice)
        ]
        if free and self.spare > 0:
            text.turn += 1
            number = free[text.turn % len(free)]
            arm = self._arms[number]
            with arm.failures.contained(request):
                if arm.drafter.looks_up:
                    self._draft_ahead(arm, number, request, text)
                else:
                    self._read(arm, number, request, text, choice)
        self.spare -= perf_counter() - before

    def _is_open(
        self, number: int, request: Request, text: ArmsText, choice: Choice
    ) -> bool:
        """Whether a score could change the choice now."""
        drafter = self._arms[number].drafter
        if drafter.looks_up:
            return True
        return (
            drafter.rereads(request)
            and self._arms[number].rule.shares_noise
            and choice.drafting[number].tokens > 0
            and len(request.tokens) - text.reread.get(number, request.prompt) >= GAP
            and choice.pace(number) * LEAD**2 > choice.pace(choice.best([]))
        )

    def _draft_ahead(
        self, arm: Speculator, number: int, request: Request, text: ArmsText
    ) -> None:
        before = perf_counter()
        batch = Batch((request,), arm.draws, context=arm.target.context)
        draft = arm.drafter.propose(batch, [NODES])
        took = perf_counter() - before
        tree, read = draft.trees[0], len(request.tokens)
        text.drafts[number] = ShadowDraft(tree, read, took)

    def _record(
        self, text: ArmsText, number: int, draft: ShadowDraft, choice: Choice
    ) -> None:
        """Record what a draft would have gained in a round of its own."""
        plain = self._costs.seconds(1)
        rows = 1 + len(draft.tree)
        longer = self._costs.seconds(rows) - plain + draft.seconds
        spent = 1.0 + longer / (plain + self.overhead)
        scored = choice.scored[number]
        tokens = draft.accepted + 1
        scored.add(tokens, spent)
        text.by_arm[number].add(tokens, spent * scored.pace)

    def _read(
        self,
        arm: Speculator,
        number: int,
        request: Request,
        text: ArmsText,
        choice: Choice,
    ) -> None:
        """Let a draft model read, and record what chains of its tokens would have
        gained; only how that compares with other texts counts.
        """
        agrees = arm.drafter.reread(request, arm.draws)
        text.reread[number] = len(request.tokens)
        mean = choice.reread[number]
        each = 1 / choice.drafting[number].pace
        for tokens in rounds(agrees):
            spent = 1.0 + each * min(tokens, NODES)
            mean.add(tokens, spent)
            text.by_arm[number].add(tokens, spent * mean.pace)


def rounds(agrees: Sequence[bool], nodes: int = NODES) -> list[int]:
    """Return the tokens of each round in which chains of `nodes` draft tokens would
    have written a text, without the last, which the end has cut.

    `agrees[i]`: whether the drafter would have drafted token i after those before it.
    """
    found, run = list[int](), 0
    for agreed in agrees:
        run += 1
        if not agreed or run > nodes:
            found.append(run)
            run = 0
    return found
