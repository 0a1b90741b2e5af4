"""Interface of the memories that take part in a C forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from foreword.model.kv.memories import SequenceMemory
from foreword.model.kv.reads import Read, Span
from foreword.native import forward

if TYPE_CHECKING:
    from foreword.model.executors.native.executor import NativeExecutor


class NativeMemory(SequenceMemory):
    """A memory of the C executor. A call that it does not override does nothing."""

    def after(self, read: Read, first: Callable[[Sequence[Read]], object]) -> Read:
        """Have `first` read the tokens that need a forward of their own; return the
        rest of the read.
        """
        return read

    def describe_model(self, model: forward.Model) -> None:
        """Add what C needs of the model."""

    def prepare(
        self, executor: NativeExecutor, reads: Sequence[Read], more: int
    ) -> None:
        """Make room for reads, and for `more` draft tokens after each that C adds."""

    def describe(
        self,
        executor: NativeExecutor,
        call: forward.Forward,
        reads: Sequence[Read],
        beyond: int,
    ) -> None:
        """Add what C needs of all sequences to a forward that may go on for `beyond`
        positions.
        """

    def describe_span(self, described: forward.Span, span: Span) -> None:
        """Add what C needs of one sequence."""

    def moved(
        self, executor: NativeExecutor, id: int, source: list[int], start: int
    ) -> None:
        """Note that position source[i] of a sequence moved to start + i."""
