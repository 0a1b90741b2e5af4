"""One method among several that share requests."""

from typing import TYPE_CHECKING

from foreword.budget import AdaptiveBudget, DraftBudget, FixedBudget
from foreword.budget.estimates import DEPTHS
from foreword.draft.base import Drafter
from foreword.engine.failures import Failures
from foreword.engine.speculator import Speculator
from foreword.engine.sub_batch import SubBatch
from foreword.types import Batch, Draft, DraftTree, Request
from foreword.types.round import Reason

if TYPE_CHECKING:
    from foreword.engine.choosing import Chooser


class _MemberFailures(Failures):
    """Failures of one drafter among several: the others go on with the request."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self.off: set[int] = set()
        """Ids of the requests that this drafter is off for."""

    def is_off(self, request: Request) -> bool:
        return request.id in self.off or super().is_off(request)

    def turn_off(self, request: Request) -> None:
        self.off.add(request.id)


class Member(Speculator):
    """One method with a budget of its own, among several."""

    def __init__(
        self, team: "Chooser", number: int, drafter: Drafter, budget: DraftBudget
    ) -> None:
        super().__init__(team.target, drafter, team.rule, budget)
        # noise that one member has computed serves the others
        self.draws = team.draws
        self.verifier = team.verifier
        self.failures: _MemberFailures = _MemberFailures(drafter)
        self.team = team
        self.number = number
        self.looks_up = drafter.about.looks_up
        self.found: dict[int, DraftTree] = {}
        """By request: the draft of this round that was looked up."""

    def _budget(self, batch: Batch, request: Request, others: int) -> int:
        nodes = super()._budget(batch, request, others)
        budget = self.budget
        if not isinstance(budget, AdaptiveBudget):
            return nodes
        if nodes and not budget.stated:
            fastest = self.team.nodes(request, self.number)
            nodes = min(nodes, fastest)
        return nodes

    def look(self, request: Request, texts: int) -> DraftTree:
        """Look up a draft for a request in a round of so many."""
        self.found.pop(request.id, None)
        context = self.target.context
        parts = (request,), self.draws, self._trees
        batch = Batch(*parts, context=context)
        nodes = self._budget(batch, request, texts - 1)
        nodes = min(nodes, DEPTHS)
        if nodes:
            draft = super()._checked_draft(batch, [nodes])
            return draft.trees[0]
        return DraftTree()

    def _checked_draft(self, batch: Batch, budgets: list[int]) -> Draft:
        trees = []
        for request in batch.requests:
            tree = self.found.pop(request.id, None)
            if tree is not None:
                trees.append(tree)
        if len(trees) == len(batch):
            return Draft(trees, device=self.target.device)
        return super()._checked_draft(batch, budgets)

    def _reason(self, sub_batch: SubBatch, row: int) -> Reason:
        reason = super()._reason(sub_batch, row)
        if reason != "method":
            return reason
        return self.team.why_plain(sub_batch.batch.requests[row])

    def stays_plain(self, request: Request) -> bool:
        if not super().stays_plain(request):
            return False
        return self.team.stays_plain(request)

    def choice_of(self, request: Request) -> tuple[str, dict[str, float]]:
        team = self.team
        name = ""
        if team.names:
            name = team.names[self.number]
        return name, team.speeds(request, len(request.tokens))

    def release(self, request: Request) -> None:
        self.failures.off.discard(request.id)
        self.found.pop(request.id, None)
        super().release(request)

    def settle(
        self, sub_batch: SubBatch, wrote: int, drafted: int, reading: int
    ) -> None:
        if not sub_batch.drafting:
            return
        learn = self.team.learn
        learn(self, sub_batch, wrote, drafted, reading)


def budget_of(member: Drafter, budget: DraftBudget, *, alone: bool) -> DraftBudget:
    """Return the budget of a member; drafts that are looked up have their own price."""
    looks_up = member.about.looks_up
    if alone and not looks_up:
        return budget
    if isinstance(budget, AdaptiveBudget) and looks_up:
        return FixedBudget(DEPTHS)
    return budget.anew()
