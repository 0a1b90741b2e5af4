"""Drafting for the requests that share one method, rule and width: what is proposed, verified, learnt, and forgiven.

Knows drafters, rules and widths by their interfaces; knows nothing about models' insides or text.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from collections.abc import Sequence as List
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from operator import ge
from time import perf_counter

from jaxtyping import Float
from torch import Tensor

from foreword.decide import Decider
from foreword.draft.base import Drafter, first_chain
from foreword.draft.check import check_probs
from foreword.draws import KeyedDraws
from foreword.errors import named
from foreword.model import Mode, Model
from foreword.params import NODES
from foreword.scheduler import Turn
from foreword.types import Batch, Clock, Draft, Scores, Sequence, Tree, Verdict
from foreword.verify import Rule
from foreword.width import Outcome, Width

FAULTS = 3
"""Faults without a clean stretch between them that pause a drafter for all requests."""
CLEAN = 64
"""Rounds with draft tokens and without a fault after which earlier faults are forgotten."""
PAUSE, LONGEST = 256, 65_536
"""Rounds that a pause lasts, the first time and at most; each one is twice as long as the one before."""


@dataclass(slots=True)
class Part:
    """The sequences of one round that write and share a speculator; `drafting` is false for those it gave up."""

    speculator: Speculator
    turns: list[Turn]
    drafting: bool
    batch: Batch = field(init=False)
    draft: Draft = field(init=False)
    verdict: Verdict = field(init=False)
    asked: list[int] = field(init=False)
    """Draft tokens that the width allowed each sequence."""
    clock: Clock = field(default_factory=Clock)


class Speculator:
    """One drafter, one rule and one width, for every request that asked for them.

    A drafter that raises or breaks its contract never fails or changes a request. A fault turns drafting off for the
    request it happened in; repeated faults pause the drafter for all requests, and it is tried again later with new
    ones. Each is said once, as a RuntimeWarning, and kept in `Sequence.undrafted`.
    """

    def __init__(
        self, target: Model, drafter: Drafter, rule: Rule, width: Width, give_up: Callable[[Sequence], None]
    ) -> None:
        """Raises ModelError where the drafter wants hidden states that the target does not have."""
        if drafter.wants:
            target.hears(drafter.wants)
        self.target, self.drafter, self.rule, self.width = target, drafter, rule, width
        self.draws = KeyedDraws(target.vocab, shared=rule.shares_noise, lists=rule.lists, device=target.device)
        self._decider = Decider(rule, self.draws, give_up)
        self.failed: str | None = None
        """The last fault of the drafter."""
        self._faults = self._clean = self._paused = 0
        self._pause = PAUSE
        self._warned = False
        self._empty: dict[int, Draft] = {}

    def begin(self, turns: List[Turn]) -> list[Part]:
        """The parts of a round that write, of the turns of this speculator: those that may be drafted for come first.

        A request that runs while the drafter pauses is not drafted for afterwards: the drafter has missed some of it.
        """
        if self._paused:
            self._paused -= 1
            for turn in turns:
                turn.sequence.undrafted = turn.sequence.undrafted or self.failed
        parts = []
        for drafting in (True, False):
            kept = [turn for turn in turns if turn.writes and (turn.sequence.undrafted is None) == drafting]
            if kept:
                parts.append(Part(self, kept, drafting))
        return parts

    # ---- propose

    def propose(self, part: Part, company: int) -> None:
        """Have the part's sequences drafted for; the forward holds `company` others beside each of them."""
        before = perf_counter()
        sequences = tuple(turn.sequence for turn in part.turns)
        stops = self.width.stops if self.width.chains else None
        part.batch = batch = Batch(sequences, self.draws, self._trees, context=self.target.context, stops=stops)
        part.asked = [self._budget(batch, one, company) if part.drafting else 0 for one in sequences]
        part.draft = self._draft(part) if any(part.asked) else self._nothing(len(sequences))
        part.clock.guess = perf_counter() - before

    def _draft(self, part: Part) -> Draft:
        batch = replace(part.batch, floor=self.width.floor, pace=self.width.pace)  # for this alone: they take a while
        try:
            draft = self._proposed(batch, part.asked)
            if draft.probs is None:  # a drawn token must not be dropped for what it turned out to be
                draft = self.width.trim(draft)
        except Exception as error:  # noqa: BLE001 - whatever a drafter does wrong, the text goes on
            self._blame(batch, part.asked, error)
            part.asked = [0] * len(batch)
            return self._nothing(len(batch))
        if self._faults and draft.nodes:
            self._clean += 1
            if self._clean >= CLEAN:
                self._faults = self._clean = 0
        return draft

    def _proposed(self, batch: Batch, asked: list[int]) -> Draft:
        draft = checked(self.drafter.propose(batch, asked), asked, self.target)
        if not (draft.chain or self._trees):
            draft = first_chain(draft)
        return draft.within([batch.reach(sequence) for sequence in batch.sequences])

    def _blame(self, batch: Batch, asked: list[int], error: Exception) -> None:
        """Find the sequences at fault by proposing for each of them alone; these drafts are thrown away."""
        if len(batch) == 1:
            self.fault(error, batch.sequences[0])
            return
        guilty: list[tuple[Sequence, Exception]] = []
        for sequence, nodes in zip(batch.sequences, asked, strict=True):
            try:
                if nodes:
                    self._proposed(replace(batch, sequences=(sequence,)), [nodes])
            except Exception as alone:  # noqa: BLE001 - as above
                guilty.append((sequence, alone))
        for sequence, alone in guilty:
            self.fault(alone, sequence, quiet=len(guilty) >= FAULTS)
        if not guilty:
            self.fault(error)

    @property
    def _trees(self) -> bool:
        return self.rule.trees and self.target.mode is Mode.TREE and not self.width.chains

    def _nothing(self, rows: int) -> Draft:
        if rows not in self._empty:
            self._empty[rows] = Draft([Tree()] * rows, device=self.target.device)
        return self._empty[rows]

    def _budget(self, batch: Batch, sequence: Sequence, company: int) -> int:
        """Draft tokens that could be of use. Near the end of a text few can be kept, but many may be one of those."""
        reach = batch.reach(sequence)
        if self.target.mode is Mode.PLAIN or not reach:
            return 0
        return max(0, min(self.width.nodes(sequence, company), NODES if batch.trees else reach))

    # ---- verify

    def verify(self, part: Part, logits: list[Float[Tensor, "_ vocab"]]) -> None:
        """Decide what stays of the part's draft, and let the drafter observe it."""
        before = perf_counter()
        part.verdict = self._decider.decide(part.batch, part.draft, logits)
        if part.drafting:
            with self.forgiving(part.batch.sequences[0] if len(part.batch) == 1 else None):
                self.drafter.observe(part.batch, part.draft, part.verdict, Scores(tuple(logits)))
        part.clock.decide = perf_counter() - before

    def hear(self, sequence: Sequence, start: int, hidden: Float[Tensor, "tokens features"]) -> None:
        """Hand the drafter the hidden states of tokens that stay."""
        if sequence.undrafted is None:
            with self.forgiving(sequence):
                self.drafter.hear(sequence, start, hidden)

    # ---- learn

    def account(self, part: Part, rows: int, reading: int) -> None:
        """Count the part's round: a forward over `rows` and `reading` tokens of prompts, of all parts together."""
        if part.drafting:
            self.width.clocked(rows, part.clock, reading)
        several = zip(part.batch.sequences, part.draft.trees, part.verdict.kept, part.asked, strict=True)
        for sequence, tree, path, asked in several:
            depth = max(tree.depths)
            sequence.stats.add(part.clock, len(tree), len(path), depth)
            if part.drafting:
                outcome = Outcome(asked, depth, len(path), part.clock.guess, part.clock.total)
                self.width.learn(sequence, outcome)

    def rest(self, took: float) -> None:
        """Let the drafter change between rounds; `took`: seconds of the last round."""
        if not self._paused:
            with self.forgiving():
                self.drafter.rest(took)

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that has ended."""
        self.draws.forget(sequence)
        self.width.release(sequence)
        with self.forgiving():
            self.drafter.release(sequence)

    # ---- faults

    @contextmanager
    def forgiving(self, sequence: Sequence | None = None) -> Iterator[None]:
        """Count whatever the drafter raises inside as a fault, of this sequence where it is known."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever a drafter does wrong, the text goes on
            self.fault(error, sequence)

    def fault(self, error: Exception, sequence: Sequence | None = None, *, quiet: bool = False) -> None:
        """Turn drafting off for a sequence; after too many faults in a row, for all of them, for a while."""
        self.failed = named(error)
        if sequence is not None:
            sequence.undrafted = self.failed
        self._faults, self._clean = 0 if self._paused else self._faults + 1, 0
        if self._faults >= FAULTS:
            self._paused, self._pause = self._pause, min(2 * self._pause, LONGEST)
            self._faults = 0
            self._say(f"the drafter failed {FAULTS} times and is off for all requests for {self._paused} rounds")
        elif not (self._warned or self._paused or quiet):
            self._say(f"the drafter failed and is off for {'one request' if sequence else 'one round'}")
        self._warned = True

    def _say(self, what: str) -> None:
        said = f"{what}; the text is not affected, only slower. {self.failed}"
        warnings.warn(said, RuntimeWarning, stacklevel=6)


def checked(draft: Draft, asked: list[int], target: Model) -> Draft:
    """The draft, on the target's device. A drafter that breaks the contract is treated like one that raises.

    It is a copy: the drafter may go on using its lists before the round is over.
    """
    trees = draft.trees
    if len(trees) != len(asked):
        raise ValueError(f"asked to guess for {len(asked)} sequences, got a draft of {len(trees)} rows")
    if any(len(tree.parents) != len(tree.tokens) for tree in trees):
        raise ValueError("every guess needs a parent, and every parent a guess")
    if any(set(map(type, numbers)) - {int} for tree in trees for numbers in (tree.tokens, tree.parents)):
        raise ValueError("tokens and parents must be whole numbers, of Python's own kind")
    if any(len(tree) > most for tree, most in zip(trees, asked, strict=True)):
        raise ValueError(f"asked for at most {asked} guesses, got {[len(tree) for tree in trees]}")
    if any(not 0 <= min(tree.tokens) <= max(tree.tokens) < target.vocab for tree in trees if tree.tokens):
        raise ValueError(f"a guess is not a token of the target's {target.vocab}")
    if any(min(tree.parents) < -1 or any(map(ge, tree.parents, count())) for tree in trees if tree.parents):
        raise ValueError("a node's parent must come before it, or be -1")
    if draft.probs is None:
        return draft.copy(target.device)
    if draft.weighed and draft.nodes:
        raise ValueError("drawn guesses must not say their chances: to drop one for them would bias the text")
    if tuple(draft.probs.shape) != (len(asked), draft.nodes, target.vocab):
        raise ValueError(f"probs must be {[len(asked), draft.nodes, target.vocab]}, got {list(draft.probs.shape)}")
    check_probs(draft)
    return draft.copy(target.device)
