"""The engine loop: propose, score, verify, commit. Prefill, plain decoding and
speculation share one path.

The engine works on token ids only; it contains no text handling and no code for any
single drafting method.
"""

from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter
from typing import cast

from jaxtyping import Float
from torch import Tensor

from foreword.budget import AdaptiveBudget, DraftBudget
from foreword.draft.base import Drafter
from foreword.draft.ensemble.auto import AutoDrafter
from foreword.engine.choosing import Chooser
from foreword.engine.commit import commit
from foreword.engine.kv_cache import KVCache
from foreword.engine.meter import Meter
from foreword.engine.scheduler import ScheduledRequest, Scheduler
from foreword.engine.speculator import Speculator, select_layers
from foreword.engine.sub_batch import SubBatch, account, reads_of, split_logits
from foreword.model import Model, Read
from foreword.sampling.draw import logprobs
from foreword.types import Clock, Delta, Load, Origin, Request
from foreword.verify import Rule


class Engine:
    """Round-based scheduler loop for one target model.

    A request uses the drafter, rule and budget given here, or the speculator it was
    added with. All requests share one target forward per round.
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
        self._failed: list[tuple[Request, BaseException]] = []
        """Requests whose commit failed in this round, with the error."""

    def speculator(
        self, drafter: Drafter, rule: Rule, budget: DraftBudget
    ) -> Speculator:
        """Return a speculator. Raises ModelError if the drafter does not fit."""
        if isinstance(drafter, AutoDrafter) or isinstance(budget, AdaptiveBudget):
            return Chooser(self.target, drafter, rule, budget)
        return Speculator(self.target, drafter, rule, budget)

    def add(self, request: Request, speculator: Speculator | None = None) -> None:
        """Queue a request, with its own speculator or the default one."""
        request.speculator = speculator or self.default
        self.scheduler.add(request)

    def abort(self, request: Request) -> None:
        """Stop a request; its committed tokens stay."""
        request.finish_reason = request.finish_reason or "abort"
        self._retire(request)

    @property
    def idle(self) -> bool:
        """Whether no request is running or waiting."""
        return self.scheduler.idle

    @property
    def load(self) -> Load:
        """Requests, preemptions, and keys and values held, for metrics."""
        return self._cache.load(
            len(self.scheduler.running), len(self.scheduler.waiting)
        )

    def step(self) -> list[Delta]:
        """Run one round and return the delta of each request that emitted tokens.

        Deltas are also appended to `Request.unread` on commit, so an interrupted round
        loses none. An error of one request ends that request, is stored in
        `Request.error`, and is raised.
        """
        with self.target.single_torch_thread():
            for request in [one for one in self.scheduler.running if one.finish_reason]:
                self._retire(request)  # an interrupt skipped this in the last round
            self._rest()
            return self._round()

    def _rest(self) -> None:
        """Let every drafter in use work between the rounds, once if it is shared."""
        speculators = [self.default, *map(self._of, self.scheduler.running)]
        by_drafter = {id(each.drafter): each for each in speculators}
        for speculator in by_drafter.values():
            speculator.rest(self.clock.total)

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
        if self.target.device.type != "cpu":
            # the host verifies while the device still computes the forward
            times[2] = times[3]
        self._begin_traces(sub_batches, scheduled)
        # no part of the round, so that budgets do not count it
        tracing = perf_counter() - times[-1]
        deltas = [
            delta
            for sub_batch, scores in zip(sub_batches, logits, strict=True)
            for delta in self._commit(sub_batch, scores)
        ]
        for entry in readers:
            entry.request.cached += entry.read
        times.append(perf_counter() - tracing)
        self.clock = Clock(*(after - before for before, after in pairwise(times)))
        self._account(scheduled, sub_batches)
        self.meter.count(scheduled, deltas)
        for entry in scheduled:
            if entry.request.finish_reason:
                self._retire(entry.request)
        self._raise_failed()
        return deltas

    def _schedule(self) -> list[ScheduledRequest]:
        """Return the requests of this round; the last ones wait if they do not fit."""
        running, cache = self.scheduler.running, self._cache
        scheduled = self.scheduler.next(
            lambda request: cache.admits(request, running, self._layers(request)),
            self._begin,
        )
        while len(running) > 1 and cache.lacks(scheduled):
            request = self.scheduler.preempt()
            cache.give_up(request)
            self._of(request).forget(request)
            scheduled = [entry for entry in scheduled if entry.request is not request]
        return scheduled

    def _begin(self, request: Request) -> None:
        """Open a request; pass its drafter the hidden states that need not be read."""
        self.meter.begin(request)
        hidden = self._cache.begin(request, self._layers(request))
        if hidden is not None:
            self._of(request).on_hidden_states(request, 0, hidden)

    def _layers(self, request: Request) -> tuple[int, ...]:
        """Return the layers whose hidden states the drafter of a request reads."""
        return (
            self._of(request).drafter.hidden_layers if request.undrafted is None else ()
        )

    def _sub_batches(self, scheduled: list[ScheduledRequest]) -> list[SubBatch]:
        """Group the entries that write by their speculator."""
        groups: dict[int, tuple[Speculator, list[ScheduledRequest]]] = {}
        for entry in scheduled:
            speculator = self._of(entry.request)
            groups.setdefault(id(speculator), (speculator, []))[1].append(entry)
        return [
            sub_batch
            for speculator, group in groups.values()
            for sub_batch in speculator.begin(group)
        ]

    def _of(self, request: Request) -> Speculator:
        return cast("Speculator", request.speculator or self.default)

    # ---- score

    def _score(
        self,
        sub_batches: list[SubBatch],
        readers: list[ScheduledRequest],
        layers: tuple[int, ...],
    ) -> tuple[list[list[Float[Tensor, "_ vocab"]]], list[Float[Tensor, "_ features"]]]:
        """Run one forward over all pending and draft tokens.

        Returns, per sub-batch and request, the logits after the last committed token
        and after each draft token; and per request the hidden states of `layers`, if
        any are requested.
        """
        reads = reads_of(sub_batches, readers)
        if not reads:
            return [], []
        if not layers:
            alone = not readers and len(sub_batches) == 1
            if alone and self.target.draws and sub_batches[0].only_draws:
                logits = self._score_and_draw(sub_batches[0], reads)
            else:
                logits = self.target.read(reads)
            return split_logits(logits, sub_batches), []
        logits, hidden = self.target.read_hidden(reads, layers)
        states = (
            [hidden]
            if len(reads) == 1
            else list(hidden.split([len(read.tokens) for read in reads]))
        )
        return split_logits(logits, sub_batches), states

    def _score_and_draw(
        self, sub_batch: SubBatch, reads: list[Read]
    ) -> Float[Tensor, "texts vocab"]:
        """Run a forward that also draws the next token of each text."""
        requests, key = sub_batch.batch.requests, sub_batch.speculator.draws.key
        draws = [(request.params.temperature, key(request)) for request in requests]
        more = [request.room > 1 for request in requests]
        logits, sub_batch.drawn = self.target.read_and_draw(reads, draws, more)
        return logits

    def _requested_layers(self, scheduled: list[ScheduledRequest]) -> tuple[int, ...]:
        """Return the layers whose hidden states any drafter of this round reads."""
        distinct = dict.fromkeys(
            layers for entry in scheduled if (layers := self._layers(entry.request))
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
        readers: list[ScheduledRequest],
        hidden: list[Tensor],
        layers: tuple[int, ...],
    ) -> None:
        """Pass each drafter its hidden states; requests that write come first."""
        if not hidden:
            return
        accepted = [
            (entry, nodes)
            for sub_batch in sub_batches
            for entry, nodes in zip(
                sub_batch.scheduled, sub_batch.verdict.kept, strict=True
            )
        ]
        for (entry, nodes), states in zip(
            [*accepted, *((entry, []) for entry in readers)], hidden, strict=True
        ):
            request, needed = entry.request, self._layers(entry.request)
            if not needed:
                continue
            rows = [*range(entry.read), *(entry.read + node for node in nodes)]
            count = len(rows)
            # indices take ten times as long as a slice
            path = states[:count] if rows[-1] == count - 1 else states[rows]
            states = select_layers(path, layers, needed)
            self._cache.keep_hidden(request, states, needed)
            self._of(request).on_hidden_states(request, request.cached, states)

    # ---- commit

    def _begin_traces(
        self, sub_batches: list[SubBatch], scheduled: list[ScheduledRequest]
    ) -> None:
        if any(entry.request.params.trace for entry in scheduled):
            from foreword.engine import trace  # which few requests need

            trace.begin(sub_batches, scheduled)

    def _commit(self, sub_batch: SubBatch, logits: list[Tensor]) -> list[Delta]:
        """Commit request by request; a failure ends only the request it belongs to."""
        before, deltas = perf_counter(), []
        several = (
            sub_batch.batch.requests,
            sub_batch.verdict.kept,
            sub_batch.verdict.said(sub_batch.draft),
        )
        for row, (request, path, emitted) in enumerate(zip(*several, strict=True)):
            try:
                if request.error is not None:  # its own parameters failed
                    raise request.error
                deltas.append(
                    self._append(
                        request,
                        sub_batch,
                        row,
                        logits[row],
                        path,
                        request.with_end(emitted),
                    )
                )
            except BaseException as error:  # noqa: BLE001 - interrupts too: the other requests must keep their tokens
                request.finish_reason = "abort"
                self._failed.append((request, error))
        sub_batch.clock.commit = perf_counter() - before
        return deltas

    def _append(
        self,
        request: Request,
        sub_batch: SubBatch,
        row: int,
        logits: Tensor,
        path: Sequence[int],
        emitted: list[int],
    ) -> Delta:
        origins: list[Origin] = [*("accepted" for _ in path), "bonus"]
        start = len(request.tokens)
        if not sub_batch.draft.chain:
            self.target.move(request.id, [start + node for node in path], start)
        measured = []
        if request.params.logprobs is not None:
            rows = logits[[0, *(node + 1 for node in path)]]
            measured = logprobs(rows, emitted, request.params.logprobs)
        drafted = len(sub_batch.draft.trees[row])
        delta = commit(request, emitted, origins, measured, drafted)
        if row in sub_batch.rounds:
            from foreword.engine import trace

            delta = trace.attach(sub_batch, row, delta)
        request.unread.append(delta)
        request.cached = start + len(path)
        request.rounds += 1
        return delta

    def _raise_failed(self) -> None:
        """Raise the error of a failed commit; interrupts take precedence."""
        failed, self._failed = self._failed, []
        for request, error in failed:
            interrupted = RuntimeError(
                "cannot continue this request: it was interrupted. Send it again"
            )
            request.error = error if isinstance(error, Exception) else interrupted
        if failed:
            raise min(
                (error for _, error in failed),
                key=lambda error: isinstance(error, Exception),
            )

    def _account(
        self, scheduled: list[ScheduledRequest], sub_batches: list[SubBatch]
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
                entry.request.stats.read(self.clock, entry.read)
        for sub_batch in sub_batches:
            if len(sub_batches) == 1:
                sub_batch.clock = self.clock
            sub_batch.clock.score = self.clock.score
            account(sub_batch, wrote, drafted, reading)

    def _retire(self, request: Request) -> None:
        self.scheduler.retire(request)
        self.target.close(request.id)
        self._of(request).release(request)

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
