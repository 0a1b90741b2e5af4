"""The loop: guess, score, decide, keep. Prefill, plain decoding and speculation are one path.

Knows tokens; knows nothing about text or about any method by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count, pairwise, zip_longest
from operator import ge
from time import perf_counter

from jaxtyping import Float
from torch import Tensor

from foreword.commit import commit
from foreword.decide import Decider
from foreword.draft.base import Drafter, first_chain
from foreword.draws import KeyedDraws
from foreword.errors import named
from foreword.model import Mode, Model, Read
from foreword.sampling import logprobs
from foreword.scheduler import Scheduler, Turn
from foreword.types import Batch, Clock, Delta, Draft, Origin, Scores, Sequence, Tree, Verdict
from foreword.verify import Rule
from foreword.width import Outcome, Width

NODES = 64
"""Room that is kept beyond a sequence's own tokens for guesses that may not stay."""


class Engine:
    """Runs sequences to their end, one round at a time, for one target, one drafter and one rule."""

    def __init__(self, target: Model, drafter: Drafter, rule: Rule, width: Width, scheduler: Scheduler) -> None:
        self.target, self.drafter, self.rule, self.width, self.scheduler = target, drafter, rule, width, scheduler
        self.draws = KeyedDraws(target.vocab, shared=rule.shares_noise, lists=rule.lists, device=target.device)
        self.decider = Decider(rule, self.draws, self.abort)
        self.failed: str | None = None
        """Why guessing was turned off, once a drafter has failed."""
        self.clock = Clock()
        self._forgiving = Forgiving(self._turn_off)
        self._empty: dict[int, Draft] = {}

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence."""
        self.scheduler.add(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Give a sequence up; what it has written stays."""
        sequence.finish_reason = sequence.finish_reason or "abort"
        self._retire(sequence)

    @property
    def idle(self) -> bool:
        """Nothing is running or waiting."""
        return self.scheduler.idle

    def step(self) -> list[Delta]:
        """One round: guess, score once, decide, keep. Returns what each sequence that wrote has written."""
        with self.target.steady():
            if not self.failed:
                with self._forgiving:
                    self.drafter.rest(self.clock.total)
            return self._round()

    def _round(self) -> list[Delta]:
        turns = self.scheduler.next()
        writers = [turn for turn in turns if turn.writes]
        readers = [turn for turn in turns if not turn.writes]
        batch = Batch(
            tuple(turn.sequence for turn in writers),
            self.draws,
            trees=self._trees,
            context=self.target.context,
            stops=self.width.stops if self.width.chains else None,
        )
        times = [perf_counter()]
        draft, asked = self._guess(batch)
        times.append(perf_counter())
        logits, hidden = self._score(writers, readers, draft)
        times.append(perf_counter())
        verdict = self.decider.decide(batch, draft, logits)
        self._observe(batch, draft, verdict, logits)
        self._share([*writers, *readers], verdict, hidden)
        times.append(perf_counter())
        deltas = self._keep(batch, draft, verdict, logits)
        for turn in readers:
            turn.sequence.cached += turn.read
        times.append(perf_counter())
        self.clock = Clock(*(after - before for before, after in pairwise(times)))
        self._account(turns, draft, verdict, asked)
        for turn in turns:
            if turn.sequence.finish_reason:
                self._retire(turn.sequence)
        return deltas

    # ---- guess

    def _guess(self, batch: Batch) -> tuple[Draft, list[int]]:
        asked = [self._budget(batch, sequence) for sequence in batch.sequences]
        if not any(asked):
            return self._nothing(len(asked)), asked
        batch = replace(batch, floor=self.width.floor, pace=self.width.pace)  # for this alone: they take a while
        try:
            draft = self.drafter.propose(batch, asked)
            draft = _checked(draft, asked, self.target)
            if not (draft.chain or self._trees):
                draft = first_chain(draft)
            draft = draft.within([batch.reach(sequence) for sequence in batch.sequences])
            if draft.probs is None:  # a guess that was drawn must not go for what it turned out to be
                draft = self.width.trim(draft)
        except Exception as error:  # noqa: BLE001 - whatever a drafter does wrong, the text goes on
            self._turn_off(error)
            return self._nothing(len(asked)), [0] * len(asked)
        return draft, asked

    @property
    def _trees(self) -> bool:
        return self.rule.trees and self.target.mode is Mode.TREE and not self.width.chains

    def _nothing(self, rows: int) -> Draft:
        if rows not in self._empty:
            self._empty[rows] = Draft([Tree()] * rows, device=self.target.device)
        return self._empty[rows]

    def _budget(self, batch: Batch, sequence: Sequence) -> int:
        """How many guesses could be of use. Near the end of a text few can be kept, but many may be one of those."""
        reach = batch.reach(sequence)
        if self.failed or self.target.mode is Mode.PLAIN or not reach:
            return 0
        return max(0, min(self.width.nodes(sequence, len(batch) - 1), NODES if batch.trees else reach))

    def _turn_off(self, error: Exception) -> None:
        if self.failed:
            return
        self.failed = named(error)
        warnings.warn(
            f"the drafter failed and is off from here on; the text is not affected, only slower. {self.failed}",
            RuntimeWarning,
            stacklevel=6,
        )

    # ---- score

    def _score(
        self, writers: list[Turn], readers: list[Turn], draft: Draft
    ) -> tuple[list[Float[Tensor, "_ vocab"]], list[Float[Tensor, "_ features"]]]:
        """One forward over all that is pending and guessed.

        Returns logits after the last committed token and each guess, and the hidden states of every row if wanted.
        """
        reads = []
        for turn, tree in zip(writers, draft.trees, strict=True):
            sequence, parents = turn.sequence, None if draft.chain else tree.parents
            reads.append(
                Read(sequence.id, sequence.cached, sequence.pending + tree.tokens, parents, keep=len(tree) + 1)
            )
        for turn in readers:
            sequence, stop = turn.sequence, turn.sequence.cached + turn.read
            reads.append(Read(sequence.id, sequence.cached, sequence.tokens[sequence.cached : stop], keep=0))
        for turn in (*writers, *readers):
            if turn.sequence.cached == 0:
                self.target.open(turn.sequence.id, turn.sequence.prompt + turn.sequence.params.max_tokens + NODES)
        if not reads:
            return [], []
        heard: list[Tensor] = []
        if self.drafter.wants and not self.failed:
            logits, hidden = self.target.hear(reads, self.drafter.wants)
            heard = [hidden] if len(reads) == 1 else list(hidden.split([len(read.tokens) for read in reads]))
        else:
            logits = self.target.read(reads)
        return [logits] if len(writers) == 1 else list(logits.split([len(tree) + 1 for tree in draft.trees])), heard

    # ---- decide

    def _observe(self, batch: Batch, draft: Draft, verdict: Verdict, logits: list[Tensor]) -> None:
        if self.failed or not len(batch):
            return
        with self._forgiving:
            self.drafter.observe(batch, draft, verdict, Scores(tuple(logits)))

    def _share(self, turns: list[Turn], verdict: Verdict, hidden: list[Tensor]) -> None:
        """Tell the drafter what the target thought at every token that stays; writers come first among the turns."""
        if self.failed or not hidden:
            return
        with self._forgiving:
            for turn, nodes, states in zip_longest(turns, verdict.kept, hidden):
                kept = [*range(turn.read), *(turn.read + node for node in nodes or ())]
                states = states if len(kept) == len(states) else states[kept]
                self.drafter.hear(turn.sequence, turn.sequence.cached, states)

    # ---- keep

    def _keep(self, batch: Batch, draft: Draft, verdict: Verdict, logits: list[Tensor]) -> list[Delta]:
        deltas = []
        rows = zip(batch.sequences, draft.trees, verdict.kept, verdict.said(draft), logits, strict=True)
        for sequence, tree, path, said, scores in rows:
            origins: list[Origin] = [*("accepted" for _ in path), "bonus"]
            if not draft.chain:
                start = len(sequence.tokens)
                self.target.move(sequence.id, [start + node for node in path], start)
            measured = []
            if sequence.params.logprobs is not None:
                seen = scores[[0, *(node + 1 for node in path)]]
                measured = logprobs(seen, said, sequence.params.logprobs)
            sequence.cached = len(sequence.tokens) + len(path)
            sequence.rounds += 1
            deltas.append(commit(sequence, said, origins, measured, len(tree)))
        return deltas

    def _account(self, turns: list[Turn], draft: Draft, verdict: Verdict, asked: list[int]) -> None:
        """Statistics of the round, and what the width learns from it."""
        guesses = sum(map(len, draft.trees))
        wrote = sum(turn.writes for turn in turns)
        if wrote:
            self.width.clocked(wrote + guesses, self.clock, sum(turn.read for turn in turns) - wrote)
        for turn in turns:
            if not turn.writes:
                turn.sequence.stats.prefill += self.clock.total
        writers = (turn.sequence for turn in turns if turn.writes)
        for sequence, tree, path, wanted in zip(writers, draft.trees, verdict.kept, asked, strict=True):
            depth = max(tree.depths)
            sequence.stats.add(self.clock, len(tree), len(path), depth)
            self.width.learn(sequence, Outcome(wanted, depth, len(path), self.clock.guess, self.clock.total))

    def _retire(self, sequence: Sequence) -> None:
        self.scheduler.retire(sequence)
        self.target.close(sequence.id)
        self.draws.forget(sequence)
        self.width.release(sequence)
        with self._forgiving:
            self.drafter.release(sequence)


class Forgiving(AbstractContextManager[None]):
    """Whatever a drafter does wrong inside, the text goes on."""

    def __init__(self, turn_off: Callable[[Exception], None]) -> None:
        self._turn_off = turn_off

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        if isinstance(error, Exception):
            self._turn_off(error)
        return isinstance(error, Exception)


def _checked(draft: Draft, asked: list[int], target: Model) -> Draft:
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
    return draft.copy(target.device)
