"""The engine loop: propose, score, verify, commit. Prefill, plain decoding and
speculation share one path.

The engine works on token ids only; it contains no text handling and no code for any
single drafting method.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter

from jaxtyping import Float
from torch import Tensor

from foreword.budget import DraftBudget
from foreword.draft.base import Drafter
from foreword.engine import trace
from foreword.engine.commit import commit
from foreword.engine.kv_cache import KVCache
from foreword.engine.meter import Meter
from foreword.engine.scheduler import ScheduledSequence, Scheduler
from foreword.engine.speculator import Speculator, select_layers
from foreword.engine.sub_batch import SubBatch, account, reads_of, split_logits
from foreword.model import Model
from foreword.sampling.draw import logprobs
from foreword.types import Clock, Delta, Load, Origin, Request
from foreword.verify import Rule


class Engine:
    """Round-based scheduler loop for one target model.

    A sequence uses the drafter, rule and budget given here, or the speculator it was
    added with. All sequences share one target forward per round.
    """

    def __init__(
        self,
        target: Model,
        drafter: Drafter,
        rule: Rule,
        budget: DraftBudget,
        scheduler: Scheduler,
    ) -> None:
        self.target = target
        self.scheduler = scheduler
        self._cache = KVCache(target)
        self.default = self.speculator(drafter, rule, budget)
        self.clock = Clock()
        self.meter = Meter()
        self._others: dict[int, Speculator] = {}
        """Request id -> speculator, for sequences that do not use the default one."""
        self._failed: list[tuple[Request, BaseException]] = []
        """Sequences whose commit failed in this round, with the error."""

    def speculator(
        self, drafter: Drafter, rule: Rule, budget: DraftBudget
    ) -> Speculator:
        """Return a speculator for this target.

        Raises ModelError if the target cannot serve the drafter.
        """
        if drafter.arms:
            from foreword.engine.arms import Arms  # which few rounds need

            return Arms(self.target, drafter, rule, budget)
        return Speculator(self.target, drafter, rule, budget)

    def add(self, sequence: Request, speculator: Speculator | None = None) -> None:
        """Queue a sequence, with its own speculator or the default one."""
        if speculator is not None and speculator is not self.default:
            self._others[sequence.id] = speculator
        self.scheduler.add(sequence)

    def abort(self, sequence: Request) -> None:
        """Stop a sequence; its committed tokens stay."""
        sequence.finish_reason = sequence.finish_reason or "abort"
        self._retire(sequence)

    @property
    def idle(self) -> bool:
        """Whether no sequence is running or waiting."""
        return self.scheduler.idle

    @property
    def load(self) -> Load:
        """Sequences, preemptions, and keys and values held, for metrics."""
        return self._cache.load(
            len(self.scheduler.running), len(self.scheduler.waiting)
        )

    def step(self) -> list[Delta]:
        """Run one round and return the delta of each sequence that emitted tokens.

        Deltas are also appended to `Request.unread` on commit, so an interrupted round
        loses none. An error of one sequence ends that sequence, is stored in
        `Request.error`, and is raised.
        """
        with self.target.single_torch_thread():
            for sequence in [
                one for one in self.scheduler.running if one.finish_reason
            ]:
                self._retire(sequence)  # an interrupt skipped this in the last round
            for speculator in {
                id(one.drafter): one for one in (self.default, *self._others.values())
            }.values():
                speculator.rest(self.clock.total)
            return self._round()

    def _round(self) -> list[Delta]:
        scheduled = self._schedule()
        sub_batches = self._sub_batches(scheduled)
        readers = [entry for entry in scheduled if not entry.writes]
        times = [perf_counter()]
        for sub_batch in sub_batches:
            sub_batch.speculator.propose(
                sub_batch, sum(len(one.scheduled) for one in sub_batches) - 1
            )
        times.append(perf_counter())
        layers = self._requested_layers(scheduled)
        logits, hidden = self._score(sub_batches, readers, layers)
        times.append(perf_counter())
        for sub_batch, scores in zip(sub_batches, logits, strict=True):
            sub_batch.speculator.verify(sub_batch, scores)
        self._share_hidden_states(sub_batches, readers, hidden, layers)
        times.append(perf_counter())
        trace.begin(sub_batches, scheduled)
        # no part of the round, so that budgets do not count it
        tracing = perf_counter() - times[-1]
        deltas = [
            delta
            for sub_batch, scores in zip(sub_batches, logits, strict=True)
            for delta in self._commit(sub_batch, scores)
        ]
        for entry in readers:
            entry.sequence.cached += entry.read
        times.append(perf_counter() - tracing)
        self.clock = Clock(*(after - before for before, after in pairwise(times)))
        self._account(scheduled, sub_batches)
        self.meter.count(scheduled, deltas)
        for entry in scheduled:
            if entry.sequence.finish_reason:
                self._retire(entry.sequence)
        self._raise_failed()
        return deltas

    def _schedule(self) -> list[ScheduledSequence]:
        """Return the sequences of this round; if their keys and values do not fit, the
        last ones have to wait.
        """
        running, cache = self.scheduler.running, self._cache
        scheduled = self.scheduler.next(
            lambda sequence: cache.admits(sequence, running, self._layers(sequence)),
            self._begin,
        )
        while len(running) > 1 and cache.lacks(scheduled):
            sequence = self.scheduler.preempt()
            cache.give_up(sequence)
            self._of(sequence).forget(sequence)
            scheduled = [entry for entry in scheduled if entry.sequence is not sequence]
        return scheduled

    def _begin(self, sequence: Request) -> None:
        """Open a sequence, and pass its drafter the hidden states of the tokens that
        need not be read.
        """
        self.meter.begin(sequence)
        hidden = self._cache.begin(sequence, self._layers(sequence))
        if hidden is not None:
            self._of(sequence).on_hidden_states(sequence, 0, hidden)

    def _layers(self, sequence: Request) -> tuple[int, ...]:
        """Return the layers after which the drafter of a sequence reads the hidden
        states of every token.
        """
        return (
            self._of(sequence).drafter.hidden_layers
            if sequence.undrafted is None
            else ()
        )

    def _sub_batches(self, scheduled: list[ScheduledSequence]) -> list[SubBatch]:
        """Group the entries that write by their speculator."""
        if not self._others:
            return self.default.begin(scheduled)
        groups: dict[int, tuple[Speculator, list[ScheduledSequence]]] = {}
        for entry in scheduled:
            speculator = self._of(entry.sequence)
            groups.setdefault(id(speculator), (speculator, []))[1].append(entry)
        return [
            sub_batch
            for speculator, group in groups.values()
            for sub_batch in speculator.begin(group)
        ]

    def _of(self, sequence: Request) -> Speculator:
        return self._others.get(sequence.id, self.default)

    # ---- score

    def _score(
        self,
        sub_batches: list[SubBatch],
        readers: list[ScheduledSequence],
        layers: tuple[int, ...],
    ) -> tuple[list[list[Float[Tensor, "_ vocab"]]], list[Float[Tensor, "_ features"]]]:
        """Run one forward over all pending and draft tokens.

        Returns, per sub-batch and sequence, the logits after the last committed token
        and after each draft token; and per sequence the hidden states of `layers`, if
        any are requested.
        """
        reads = reads_of(sub_batches, readers)
        if not reads:
            return [], []
        if not layers:
            return split_logits(self.target.read(reads), sub_batches), []
        logits, hidden = self.target.read_hidden(reads, layers)
        states = (
            [hidden]
            if len(reads) == 1
            else list(hidden.split([len(read.tokens) for read in reads]))
        )
        return split_logits(logits, sub_batches), states

    def _requested_layers(self, scheduled: list[ScheduledSequence]) -> tuple[int, ...]:
        """Return the layers whose hidden states the drafters of this round read,
        without duplicates.
        """
        distinct = dict.fromkeys(
            layers for entry in scheduled if (layers := self._layers(entry.sequence))
        )
        return (
            next(iter(distinct))
            if len(distinct) == 1
            else tuple({layer: 0 for one in distinct for layer in one})
        )

    # ---- verify

    def _share_hidden_states(
        self,
        sub_batches: list[SubBatch],
        readers: list[ScheduledSequence],
        hidden: list[Tensor],
        layers: tuple[int, ...],
    ) -> None:
        """Pass each drafter the hidden states of the committed tokens; sequences that
        write come first in `hidden`.
        """
        if not hidden:
            return
        kept = [
            (entry, nodes)
            for sub_batch in sub_batches
            for entry, nodes in zip(
                sub_batch.scheduled, sub_batch.verdict.kept, strict=True
            )
        ]
        for (entry, nodes), states in zip(
            [*kept, *((entry, []) for entry in readers)], hidden, strict=True
        ):
            sequence, needed = entry.sequence, self._layers(entry.sequence)
            if not needed:
                continue
            rows = [*range(entry.read), *(entry.read + node for node in nodes)]
            count = len(rows)
            # indices take ten times as long as a slice
            path = states[:count] if rows[-1] == count - 1 else states[rows]
            states = select_layers(path, layers, needed)
            self._cache.keep_hidden(sequence, states, needed)
            self._of(sequence).on_hidden_states(sequence, sequence.cached, states)

    # ---- commit

    def _commit(self, sub_batch: SubBatch, logits: list[Tensor]) -> list[Delta]:
        """Commit the verdict, sequence by sequence.

        A failure ends only the sequence it belongs to.
        """
        before, deltas = perf_counter(), []
        several = (
            sub_batch.batch.sequences,
            sub_batch.verdict.kept,
            sub_batch.verdict.said(sub_batch.draft),
        )
        for row, (sequence, path, emitted) in enumerate(zip(*several, strict=True)):
            try:
                if sequence.error is not None:  # its own parameters failed
                    raise sequence.error
                deltas.append(
                    self._append(
                        sequence,
                        sub_batch,
                        row,
                        logits[row],
                        path,
                        sequence.with_end(emitted),
                    )
                )
            except BaseException as error:  # noqa: BLE001 - interrupts too: the other sequences must keep their tokens
                sequence.finish_reason = "abort"
                self._failed.append((sequence, error))
        sub_batch.clock.commit = perf_counter() - before
        return deltas

    def _append(
        self,
        sequence: Request,
        sub_batch: SubBatch,
        row: int,
        logits: Tensor,
        path: Sequence[int],
        emitted: list[int],
    ) -> Delta:
        origins: list[Origin] = [*("accepted" for _ in path), "bonus"]
        start = len(sequence.tokens)
        if not sub_batch.draft.chain:
            self.target.move(sequence.id, [start + node for node in path], start)
        measured = []
        if sequence.params.logprobs is not None:
            rows = logits[[0, *(node + 1 for node in path)]]
            measured = logprobs(rows, emitted, sequence.params.logprobs)
        drafted = len(sub_batch.draft.trees[row])
        delta = trace.attach(
            sub_batch, row, commit(sequence, emitted, origins, measured, drafted)
        )
        sequence.unread.append(delta)
        sequence.cached = start + len(path)
        sequence.rounds += 1
        return delta

    def _raise_failed(self) -> None:
        """Raise the error of a failed commit; interrupts take precedence."""
        failed, self._failed = self._failed, []
        for sequence, error in failed:
            interrupted = RuntimeError(
                "cannot continue this request: it was interrupted. Send it again"
            )
            sequence.error = error if isinstance(error, Exception) else interrupted
        if failed:
            raise min(
                (error for _, error in failed),
                key=lambda error: isinstance(error, Exception),
            )

    def _account(
        self, scheduled: list[ScheduledSequence], sub_batches: list[SubBatch]
    ) -> None:
        """Update statistics and budgets with the round."""
        wrote = sum(entry.writes for entry in scheduled)
        drafted = sum(
            len(tree) for sub_batch in sub_batches for tree in sub_batch.draft.trees
        )
        reading = sum(entry.read for entry in scheduled) - wrote
        self.scheduler.measure(scheduled, self.clock.total)
        for entry in scheduled:
            if not entry.writes:
                entry.sequence.stats.read(self.clock, entry.read)
        for sub_batch in sub_batches:
            if len(sub_batches) == 1:
                sub_batch.clock = self.clock
            sub_batch.clock.score = self.clock.score
            account(sub_batch, wrote, drafted, reading)
            trace.close(sub_batch)

    def _retire(self, sequence: Request) -> None:
        self.scheduler.retire(sequence)
        self.target.close(sequence.id)
        self._of(sequence).release(sequence)
        self._others.pop(sequence.id, None)

    @property
    def drafter(self) -> Drafter:
        """The default drafter."""
        return self.default.drafter

    @property
    def budget(self) -> DraftBudget:
        """The default budget policy."""
        return self.default.budget

    @property
    def rule(self) -> Rule:
        """The default verification rule."""
        return self.default.rule

    @property
    def failed(self) -> str | None:
        """The last error of the default drafter, or None."""
        return self.default.failed
