"""The loop: propose, score, verify, commit. Prefill, plain decoding and speculation are one path.

Knows tokens; knows nothing about text or about any method by name.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from itertools import pairwise
from time import perf_counter

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.commit import commit
from foreword.draft.base import Drafter
from foreword.model import Model, Read
from foreword.params import NODES
from foreword.sampling import logprobs
from foreword.scheduler import Scheduler, Turn
from foreword.speculator import Part, Speculator
from foreword.types import Clock, Delta, Draft, Origin, Sequence
from foreword.verify import Rule
from foreword.width import Width


class Engine:
    """Runs sequences to their end, one round at a time, for one target.

    A sequence is drafted for by the drafter, rule and width given here, or by the speculator it was added with; all
    share each forward of the target.
    """

    def __init__(self, target: Model, drafter: Drafter, rule: Rule, width: Width, scheduler: Scheduler) -> None:
        self.target, self.scheduler = target, scheduler
        self.usual = self.speculator(drafter, rule, width)
        self.clock = Clock()
        self._others: dict[int, Speculator] = {}
        """Speculators of the sequences that were added with one, by sequence id."""
        self._broken: list[tuple[Sequence, BaseException]] = []
        """Sequences that could not be committed in this round."""

    def speculator(self, drafter: Drafter, rule: Rule, width: Width) -> Speculator:
        """Another way to draft for sequences of this engine. Raises ModelError where the drafter cannot be served."""
        return Speculator(self.target, drafter, rule, width, self.abort)

    def add(self, sequence: Sequence, speculator: Speculator | None = None) -> None:
        """Queue a sequence, to be drafted for by this speculator instead of the engine's own."""
        if speculator is not None and speculator is not self.usual:
            self._others[sequence.id] = speculator
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
        """One round: propose, score once, verify, commit. Returns what each sequence that wrote has written.

        The same deltas are appended to `Sequence.unread` as they are committed, so that none is lost where a round is
        interrupted. An error that belongs to one sequence ends it, is kept in `Sequence.error`, and is raised.
        """
        with self.target.steady():
            for sequence in [one for one in self.scheduler.running if one.finish_reason]:
                self._retire(sequence)  # an interrupt came before this was done
            for speculator in {id(one.drafter): one for one in (self.usual, *self._others.values())}.values():
                speculator.rest(self.clock.total)
            return self._round()

    def _round(self) -> list[Delta]:
        turns = self.scheduler.next()
        parts = self._parts(turns)
        readers = [turn for turn in turns if not turn.writes]
        times = [perf_counter()]
        for part in parts:
            part.speculator.propose(part, sum(len(one.turns) for one in parts) - 1)
        times.append(perf_counter())
        wanted = self._wanted(parts, readers)
        logits, hidden = self._score(parts, readers, wanted)
        times.append(perf_counter())
        for part, scores in zip(parts, logits, strict=True):
            part.speculator.verify(part, scores)
        self._share(parts, readers, hidden, wanted)
        times.append(perf_counter())
        deltas = [delta for part, scores in zip(parts, logits, strict=True) for delta in self._commit(part, scores)]
        for turn in readers:
            turn.sequence.cached += turn.read
        times.append(perf_counter())
        self.clock = Clock(*(after - before for before, after in pairwise(times)))
        self._account(turns, parts)
        for turn in turns:
            if turn.sequence.finish_reason:
                self._retire(turn.sequence)
        self._raise_broken()
        return deltas

    def _parts(self, turns: list[Turn]) -> list[Part]:
        """The turns that write, by who drafts for them."""
        if not self._others:
            return self.usual.begin(turns)
        groups: dict[int, tuple[Speculator, list[Turn]]] = {}
        for turn in turns:
            speculator = self._of(turn.sequence)
            groups.setdefault(id(speculator), (speculator, []))[1].append(turn)
        return [part for speculator, group in groups.values() for part in speculator.begin(group)]

    def _of(self, sequence: Sequence) -> Speculator:
        return self._others.get(sequence.id, self.usual)

    # ---- score

    def _score(
        self, parts: list[Part], readers: list[Turn], wanted: tuple[int, ...]
    ) -> tuple[list[list[Float[Tensor, "_ vocab"]]], list[Float[Tensor, "_ features"]]]:
        """One forward over all that is pending and drafted.

        Returns, for each part, the logits after the last committed token and each draft token of its sequences, and
        the `wanted` hidden states of every row, if there are any.
        """
        reads = []
        for part in parts:
            for turn, tree in zip(part.turns, part.draft.trees, strict=True):
                sequence, parents = turn.sequence, None if part.draft.chain else tree.parents
                tokens = sequence.pending + tree.tokens
                reads.append(Read(sequence.id, sequence.cached, tokens, parents, keep=len(tree) + 1))
        for turn in readers:
            sequence, stop = turn.sequence, turn.sequence.cached + turn.read
            reads.append(Read(sequence.id, sequence.cached, sequence.tokens[sequence.cached : stop], keep=0))
        for turn in (*(turn for part in parts for turn in part.turns), *readers):
            if turn.sequence.cached == 0:
                self.target.open(turn.sequence.id, turn.sequence.prompt + turn.sequence.params.max_tokens + NODES)
        if not reads:
            return [], []
        heard: list[Tensor] = []
        if wanted:
            logits, hidden = self.target.hear(reads, wanted)
            heard = [hidden] if len(reads) == 1 else list(hidden.split([len(read.tokens) for read in reads]))
        else:
            logits = self.target.read(reads)
        counts = [[len(tree) + 1 for tree in part.draft.trees] for part in parts]
        if len(counts) == 1 and len(counts[0]) == 1:
            return [[logits]], heard
        pieces = iter(logits.split([rows for part in counts for rows in part]))
        return [[next(pieces) for _ in part] for part in counts], heard

    def _wanted(self, parts: list[Part], readers: list[Turn]) -> tuple[int, ...]:
        """The hidden states that drafters read in this round, each once."""
        heard = [part.speculator.drafter.wants for part in parts if part.drafting]
        heard += [self._of(turn.sequence).drafter.wants for turn in readers if turn.sequence.undrafted is None]
        different = dict.fromkeys(wants for wants in heard if wants)
        return next(iter(different)) if len(different) == 1 else tuple({layer: 0 for one in different for layer in one})

    # ---- verify

    def _share(self, parts: list[Part], readers: list[Turn], hidden: list[Tensor], wanted: tuple[int, ...]) -> None:
        """Hand every drafter the hidden states it wants of the tokens that stay; writers come first among the rows."""
        if not hidden:
            return
        kept = [(turn, nodes) for part in parts for turn, nodes in zip(part.turns, part.verdict.kept, strict=True)]
        for (turn, nodes), states in zip([*kept, *((turn, []) for turn in readers)], hidden, strict=True):
            speculator = self._of(turn.sequence)
            if not speculator.drafter.wants:
                continue
            rows = [*range(turn.read), *(turn.read + node for node in nodes)]
            states = states if len(rows) == len(states) else states[rows]
            speculator.hear(turn.sequence, turn.sequence.cached, _chosen(states, wanted, speculator.drafter.wants))

    # ---- commit

    def _commit(self, part: Part, logits: list[Tensor]) -> list[Delta]:
        """Append what was decided, sequence by sequence. One that cannot be ends with an error, and no other does."""
        before, deltas = perf_counter(), []
        rows = zip(part.batch.sequences, part.verdict.kept, part.verdict.said(part.draft), strict=True)
        for row, (sequence, path, said) in enumerate(rows):
            try:
                deltas.append(self._append(sequence, part.draft, row, logits[row], path, said))
            except BaseException as error:  # noqa: BLE001 - an interrupt too: the others' text must not be lost
                sequence.finish_reason = "abort"
                self._broken.append((sequence, error))
        part.clock.keep = perf_counter() - before
        return deltas

    def _append(
        self, sequence: Sequence, draft: Draft, row: int, logits: Tensor, path: List[int], said: list[int]
    ) -> Delta:
        origins: list[Origin] = [*("accepted" for _ in path), "bonus"]
        if not draft.chain:
            start = len(sequence.tokens)
            self.target.move(sequence.id, [start + node for node in path], start)
        measured = []
        if sequence.params.logprobs is not None:
            seen = logits[[0, *(node + 1 for node in path)]]
            measured = logprobs(seen, said, sequence.params.logprobs)
        cached = len(sequence.tokens) + len(path)
        delta = commit(sequence, said, origins, measured, len(draft.trees[row]))
        sequence.unread.append(delta)
        sequence.cached = cached
        sequence.rounds += 1
        return delta

    def _raise_broken(self) -> None:
        """Raise what kept a sequence from being committed; an interrupt before anything else."""
        broken, self._broken = self._broken, []
        for sequence, error in broken:
            interrupted = RuntimeError("cannot go on with this request: it was interrupted. Ask for it again")
            sequence.error = error if isinstance(error, Exception) else interrupted
        if broken:
            raise min((error for _, error in broken), key=lambda error: isinstance(error, Exception))

    def _account(self, turns: list[Turn], parts: list[Part]) -> None:
        """Statistics of the round, and what the widths learn from it."""
        wrote = sum(turn.writes for turn in turns)
        drafted = sum(len(tree) for part in parts for tree in part.draft.trees)
        reading = sum(turn.read for turn in turns) - wrote
        for turn in turns:
            if not turn.writes:
                turn.sequence.stats.prefill += self.clock.total
        for part in parts:
            if len(parts) == 1:
                part.clock = self.clock
            part.clock.score = self.clock.score
            part.speculator.account(part, wrote + drafted, reading)

    def _retire(self, sequence: Sequence) -> None:
        self.scheduler.retire(sequence)
        self.target.close(sequence.id)
        self._of(sequence).release(sequence)
        self._others.pop(sequence.id, None)

    # ---- the engine's own speculator

    @property
    def drafter(self) -> Drafter:
        """The drafter of sequences that were added without a speculator."""
        return self.usual.drafter

    @property
    def width(self) -> Width:
        """The width of those."""
        return self.usual.width

    @property
    def rule(self) -> Rule:
        """The rule of those."""
        return self.usual.rule

    @property
    def failed(self) -> str | None:
        """The last fault of their drafter; None where there was none."""
        return self.usual.failed


def _chosen(states: Tensor, given: tuple[int, ...], wanted: tuple[int, ...]) -> Tensor:
    """Of hidden states side by side, those of the wanted layers, in their order."""
    if given == wanted:
        return states
    size = states.shape[1] // len(given)
    return torch.cat([states[:, size * at : size * (at + 1)] for at in map(given.index, wanted)], dim=1)
