"""The loop: guess, score, decide, keep. Prefill, plain decoding and speculation are one path.

Knows tokens; knows nothing about text or about any method by name.
"""

from __future__ import annotations

import warnings
from itertools import pairwise
from time import perf_counter

from jaxtyping import Float
from torch import Tensor

from foreword.commit import commit
from foreword.decide import Decider
from foreword.draft.base import Drafter, chosen, first_chain
from foreword.draws import KeyedDraws
from foreword.model import Mode, Model, Read
from foreword.sampling import logprobs
from foreword.scheduler import Scheduler, Turn
from foreword.types import Batch, Clock, Delta, Draft, Origin, Scores, Sequence, Verdict
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
            return self._round()

    def _round(self) -> list[Delta]:
        turns = self.scheduler.next()
        writers = [turn for turn in turns if turn.writes]
        readers = [turn for turn in turns if not turn.writes]
        batch = Batch(tuple(turn.sequence for turn in writers), self.draws, self._trees, self.width.floor)
        times = [perf_counter()]
        draft, asked = self._guess(batch)
        times.append(perf_counter())
        logits = self._score(writers, readers, draft)
        times.append(perf_counter())
        verdict = self.decider.decide(batch, draft, logits)
        self._observe(batch, draft, verdict, logits)
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
        asked = [self._budget(sequence, len(batch) - 1) for sequence in batch.sequences]
        if not any(asked):
            return self._nothing(len(asked)), asked
        try:
            draft = self.drafter.propose(batch, asked)
            draft = _checked(draft, asked, self.target)
            if not (draft.chain or self._trees):
                draft = first_chain(draft)
            draft = self.width.trim(draft)
        except Exception as error:  # noqa: BLE001 - whatever a drafter does wrong, the text goes on
            self._turn_off(error)
            return self._nothing(len(asked)), [0] * len(asked)
        return draft, asked

    @property
    def _trees(self) -> bool:
        return self.rule.trees and self.target.mode is Mode.TREE

    def _nothing(self, rows: int) -> Draft:
        if rows not in self._empty:
            self._empty[rows] = chosen([[]] * rows, self.target.device)
        return self._empty[rows]

    def _budget(self, sequence: Sequence, company: int) -> int:
        """How many guesses could still be of use: the target always adds one token itself."""
        if self.failed or self.target.mode is Mode.PLAIN:
            return 0
        useful = min(sequence.room - 1, self.target.context - len(sequence.tokens) - 1, NODES)
        return max(0, min(self.width.nodes(sequence, company), useful))

    def _turn_off(self, error: Exception) -> None:
        if self.failed:
            return
        self.failed = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"the drafter failed and is off from here on; the text is not affected, only slower. {self.failed}",
            RuntimeWarning,
            stacklevel=4,
        )

    # ---- score

    def _score(self, writers: list[Turn], readers: list[Turn], draft: Draft) -> list[Float[Tensor, "_ vocab"]]:
        """One forward over all that is pending and guessed; logits after the last committed token and each guess."""
        tokens, parents, count = draft.tokens.tolist(), draft.parents.tolist(), draft.count.tolist()
        reads = []
        for row, turn in enumerate(writers):
            sequence, nodes = turn.sequence, count[row]
            tree = None if draft.chain else parents[row][:nodes]
            pending = sequence.pending + tokens[row][:nodes]
            reads.append(Read(sequence.id, sequence.cached, pending, tree, keep=nodes + 1))
        for turn in readers:
            sequence, stop = turn.sequence, turn.sequence.cached + turn.read
            reads.append(Read(sequence.id, sequence.cached, sequence.tokens[sequence.cached : stop], keep=0))
        for turn in (*writers, *readers):
            if turn.sequence.cached == 0:
                self.target.open(turn.sequence.id, turn.sequence.prompt + turn.sequence.params.max_tokens + NODES)
        if not reads:
            return []
        logits = self.target.read(reads)
        return list(logits.split([nodes + 1 for nodes in count]))

    # ---- decide

    def _observe(self, batch: Batch, draft: Draft, verdict: Verdict, logits: list[Tensor]) -> None:
        if self.failed or not len(batch):
            return
        try:
            self.drafter.observe(batch, draft, verdict, Scores(tuple(logits)))
        except Exception as error:  # noqa: BLE001 - as in _guess
            self._turn_off(error)

    # ---- keep

    def _keep(self, batch: Batch, draft: Draft, verdict: Verdict, logits: list[Tensor]) -> list[Delta]:
        tokens, count = draft.tokens.tolist(), draft.count.tolist()
        paths, accepted, bonus = verdict.path.tolist(), verdict.accepted.tolist(), verdict.bonus.tolist()
        deltas = []
        for row, sequence in enumerate(batch.sequences):
            path = paths[row][: accepted[row]]
            said = [tokens[row][node] for node in path] + [bonus[row]]
            origins: list[Origin] = [*("accepted" for _ in path), "bonus"]
            if not draft.chain:
                start = len(sequence.tokens)
                self.target.move(sequence.id, [start + node for node in path], start)
            measured = []
            if sequence.params.logprobs is not None:
                seen = logits[row][[0, *(node + 1 for node in path)]]
                measured = logprobs(seen, said, sequence.params.logprobs)
            sequence.cached = len(sequence.tokens) + len(path)
            sequence.rounds += 1
            deltas.append(commit(sequence, said, origins, measured, count[row]))
        return deltas

    def _account(self, turns: list[Turn], draft: Draft, verdict: Verdict, asked: list[int]) -> None:
        """Statistics of the round, and what the width learns from it."""
        count, accepted = draft.count.tolist(), verdict.accepted.tolist()
        rows = sum(turn.read for turn in turns if turn.writes) + sum(count)
        only_decoding = all(turn.writes for turn in turns) and rows == len(turns) + sum(count)
        if turns and only_decoding:
            self.width.clocked(rows, self.clock)
        row = 0
        for turn in turns:
            stats = turn.sequence.stats
            if not turn.writes:
                stats.prefill += self.clock.total
                continue
            depth = max(draft.depths(row)[: count[row] + 1])
            stats.add(self.clock, count[row], accepted[row], depth)
            if only_decoding:
                outcome = Outcome(asked[row], depth, accepted[row], self.clock.guess, self.clock.total)
                self.width.learn(turn.sequence, outcome)
            row += 1

    def _retire(self, sequence: Sequence) -> None:
        self.scheduler.retire(sequence)
        self.target.close(sequence.id)
        self.draws.forget(sequence)
        self.width.release(sequence)
        try:
            self.drafter.release(sequence)
        except Exception as error:  # noqa: BLE001 - as in _guess
            self._turn_off(error)


def _checked(draft: Draft, asked: list[int], target: Model) -> Draft:
    """The draft, on the target's device. A drafter that breaks the contract is treated like one that raises."""
    count, shape = draft.count.tolist(), (len(asked), draft.nodes)
    if tuple(draft.tokens.shape) != shape or tuple(draft.parents.shape) != shape or len(count) != len(asked):
        raise ValueError(f"tokens and parents must be of one shape with {len(asked)} rows, and count of that length")
    if any(not 0 <= n <= min(most, draft.nodes) for n, most in zip(count, asked, strict=True)):
        raise ValueError(f"asked for at most {asked} guesses, got {count} in a draft of width {draft.nodes}")
    if any(not 0 <= min(row) <= max(row) < target.vocab for row in draft.tokens.tolist() if row):
        raise ValueError(f"a guess is not a token of the target's {target.vocab}")
    if any(not -1 <= parent < node for row in draft.parents.tolist() for node, parent in enumerate(row)):
        raise ValueError("a node's parent must come before it, or be -1")
    if draft.probs is not None and draft.chances is not None:
        raise ValueError("drawn guesses must not say their chances: to drop one for them would bias the text")
    if draft.probs is not None and tuple(draft.probs.shape) != (*shape, target.vocab):
        raise ValueError(f"probs must be {[*shape, target.vocab]}, got {list(draft.probs.shape)}")
    where = target.device
    if draft.tokens.device == where:
        return draft
    probs = None if draft.probs is None else draft.probs.to(where)
    chances = None if draft.chances is None else draft.chances.to(where)
    return Draft(draft.tokens.to(where), draft.parents.to(where), draft.count.to(where), probs, draft.chain, chances)
