"""An ensemble in order of cost: expensive members draft where cheap ones are unsure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter

from foreword.draft.acceptance import AcceptanceEstimate
from foreword.draft.base import Drafter
from foreword.draft.ensemble.joint import JointDrafter
from foreword.estimators import (
    DECAY,
    CalibrationRatio,
    LinearCost,
    finite,
    shrunk,
    steadied,
)
from foreword.registry import OWN_METHODS
from foreword.types import Batch, Draft, DraftTree, Request, Scores, Verdict

PRIOR = 0.5
"""Prior acceptance probability after an accepted parent, if a member states none."""
EAGER = 4.0
"""Prior gain of a member, in accepted draft tokens."""
SHARE = 0.02
"""Share of the time for members that do not pay, in case they became better."""
RAREST = 4
"""Times a member's time: most saved up before one of little gain is tried."""


class DecayedMean:
    """Mean of a member's gain, with decay and a prior."""

    __slots__ = ("_prior", "_seen", "_weight")

    def __init__(self) -> None:
        self._seen = 0.0
        self._weight = 0.0
        self._prior = 1.0

    def tokens(self) -> float:
        """Return the mean in tokens; the weight of the prior decays as well."""
        return shrunk(self._seen, self._weight, EAGER, self._prior)

    def learn(self, tokens: float) -> None:
        """Record one draft with this gain."""
        if not finite(tokens):
            return
        self._seen = DECAY * self._seen + tokens
        self._weight = DECAY * self._weight + 1
        self._prior *= DECAY


class CascadeDrafter(JointDrafter):
    """Ensemble whose members run in turn, each where its mean gain exceeds that of
    earlier members and its time.

    The gain of a tree is the sum of its probabilities: its expected accepted tokens.
    The tree of the largest gain is taken (as SuffixDecoding hands over to a model by
    its score: Oliaro et al. 2025, arXiv 2411.04975). A member that states no
    probabilities gets its measured acceptance rates, by depth.
    """

    about = OWN_METHODS["cascade"]

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        """Take the members by cost. Raises InvalidRequest for fewer than two."""
        super().__init__(drafters)
        self._gain_estimates = [(DecayedMean(), DecayedMean()) for _ in self.members]
        """Mean gain of each member, by (sampled, greedy)."""
        self._acceptance = AcceptanceEstimate()
        self._unweighed = [False] * len(self.members)
        """Members that state no probabilities."""
        self._trees: dict[int, dict[int, DraftTree]] = {}
        """Request id -> member -> its tree of this round."""
        self._took = [0.0] * len(self.members)
        """Seconds of each member's draft, for the whole batch."""
        self._drafting_costs = [LinearCost() for _ in self.members]
        """The same by number of draft tokens."""
        self._last_round: list[set[int]] = [set() for _ in self.members]
        """Requests that each member drafted for in the last round; it must catch up on
        others first.
        """
        self._this_round: list[set[int]] = [set() for _ in self.members]
        """The same of this round."""
        self._calibrations = [
            (CalibrationRatio(), CalibrationRatio()) for _ in self.members
        ]
        """By (sampled, greedy): greedy text repeats itself and is easier to predict."""
        self._scoring = LinearCost()
        """Seconds of a round without drafting, by the draft tokens it scores."""
        self._spent = 0.0
        """Seconds of drafting in this round."""
        self._scored: int | None = None
        """Draft tokens scored in this round; None if it also read prompts."""
        self._spare = 0.0
        """Seconds left of SHARE."""
        self._tried = 0.0
        """Times the seconds of the member being tried that are deducted from `_spare`;
        0 if none is tried.
        """

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        if batch.draws.wants_probs:
            return self._first_nonempty(batch, nodes)
        requests = batch.requests
        best = self._propose_member(0, batch, nodes)
        best_gains = [
            self._expected_gain(0, request, tree, batch)
            for request, tree in zip(requests, best, strict=True)
        ]
        for member in range(1, len(self.members)):
            by_kind = self._gain_estimates[member]
            estimates = [by_kind[request.params.greedy] for request in requests]
            gains = [
                max(estimate.tokens() - gain, 0.0)
                for estimate, gain in zip(estimates, best_gains, strict=True)
            ]
            budgets = self._budgets(member, batch, nodes, gains)
            trees = self._propose_member(member, batch, budgets)
            for row, tree in enumerate(trees):
                request = requests[row]
                gain = self._expected_gain(member, request, tree, batch)
                if budgets[row]:
                    estimates[row].learn(gain)
                if gain > best_gains[row]:
                    best[row] = tree
                    best_gains[row] = gain
        return Draft(best if batch.trees else [tree.as_chain() for tree in best])

    def observe(
        self, batch: Batch, draft: Draft, verdict: Verdict, scores: Scores
    ) -> None:
        # else this round also reads prompts
        if all(request.rounds for request in batch.requests):
            self._scored = sum(map(len, draft.trees))
        for request, tokens in zip(batch.requests, verdict.said(draft), strict=True):
            self.update(request, self._trees.pop(request.id, {}), tokens)
        super().observe(batch, draft, verdict, scores)

    def rest(self, took: float) -> None:
        self._spare = min(
            self._spare + SHARE * steadied(took, 0.0), RAREST * max(self._took)
        )
        if self._scored is not None:
            self._scoring.learn(self._scored, took - self._spent)
        self._last_round = self._this_round
        self._this_round = [set() for _ in self.members]
        self._spent, self._scored = 0.0, None
        super().rest(took)

    def release(self, request: Request) -> None:
        self._trees.pop(request.id, None)
        for ids in (*self._last_round, *self._this_round):
            ids.discard(request.id)
        super().release(request)

    def update(
        self, request: Request, trees: Mapping[int, DraftTree], emitted: Sequence[int]
    ) -> None:
        """Update each member's acceptance: the target emitted `emitted` where they
        drafted these trees.
        """
        for member, tree in trees.items():
            calibration = self._calibrations[member][request.params.greedy]
            calibration.promise(sum(tree.probabilities))
            calibration.keep(self._count_accepted(member, tree, emitted))

    def _count_accepted(
        self, member: int, tree: DraftTree, emitted: Sequence[int]
    ) -> int:
        """Return how many successive draft tokens of the tree were accepted."""
        node, children_by_token = -1, tree.children_by_token()
        for depth, token in enumerate(emitted):
            children = children_by_token.get(node)
            if not children:
                return depth
            if self._unweighed[member]:
                self._acceptance.learn((member, depth), token in children)
            if token not in children:
                return depth
            node = children[token]
        return len(emitted)

    def _budgets(
        self, member: int, batch: Batch, nodes: Sequence[int], gains: Sequence[float]
    ) -> Sequence[int]:
        """Return the budgets of a member that is expected to add `gains` tokens to each
        request.

        Zero if drafting costs more than it saves. Occasionally re-enabled, so that a
        recovered member is noticed; less often the less is expected.
        """
        budgets = [
            most if gain > 0 else 0 for most, gain in zip(nodes, gains, strict=True)
        ]
        expected = sum(gain for most, gain in zip(budgets, gains, strict=True) if most)
        needed = len(batch) * batch.pace * self._took[member]
        if expected >= needed:
            return budgets
        times = min(needed / max(expected, 1e-9), RAREST)
        if self._spare >= times * self._took[member]:
            self._tried = times
            return nodes
        return [0] * len(nodes)

    def _expected_gain(
        self, member: int, request: Request, tree: DraftTree, batch: Batch
    ) -> float:
        """Return the tokens that a tree is expected to add, minus the cost of scoring
        it, but not of drafting it.
        """
        share = self._calibrations[member][request.params.greedy].share
        cost = self._floor(batch)
        return sum(
            max(share * probability - cost, 0.0) for probability in tree.probabilities
        )

    def _floor(self, batch: Batch, member: int | None = None) -> float:
        """Return the probability at which a draft token pays for half its scoring and,
        given `member`, its drafting.
        """
        return batch.pace * (
            0.5 * self._scoring.each
            + (0.0 if member is None else self._drafting_costs[member].each)
        )

    def _propose_member(
        self, member: int, batch: Batch, nodes: Sequence[int]
    ) -> list[DraftTree]:
        """Return one member's trees for every request, with probabilities."""
        if not any(nodes):
            return [DraftTree() for _ in nodes]
        trees = []
        for request, tree in zip(
            batch.requests, self._timed(member, batch, nodes).trees, strict=True
        ):
            if tree.tokens and not tree.probabilities:
                self._unweighed[member] = True
                tree = DraftTree(
                    tree.tokens, tree.parents, self._estimated(member, tree)
                )
            if tree.tokens:
                self._trees.setdefault(request.id, {})[member] = tree
            trees.append(tree)
        return trees

    def _timed(self, member: int, batch: Batch, nodes: Sequence[int]) -> Draft:
        """Return a member's draft and record its seconds, unless it had to catch up on
        requests first.
        """
        ids = {
            request.id
            for request, most in zip(batch.requests, nodes, strict=True)
            if most
        }
        start, self._this_round[member] = perf_counter(), ids
        draft = self.members[member].propose(
            replace(batch, floor=self._floor(batch, member), expand=0.0), nodes
        )
        took = perf_counter() - start
        self._spent += took
        self._tried, self._spare = 0.0, self._spare - self._tried * took
        if ids <= self._last_round[member] or took < self._took[member]:
            mean = self._took[member]
            self._took[member] += (0.1 if mean else 1.0) * (steadied(took, mean) - mean)
            self._drafting_costs[member].learn(sum(map(len, draft.trees)), took)
        return draft

    def _estimated(self, member: int, tree: DraftTree) -> list[float]:
        depths, probabilities = [-1], [1.0]
        for parent in tree.parents:
            depths.append(depths[parent + 1] + 1)
            probabilities.append(
                probabilities[parent + 1]
                * self._acceptance.probability((member, depths[-1]), PRIOR)
            )
        return probabilities[1:]
