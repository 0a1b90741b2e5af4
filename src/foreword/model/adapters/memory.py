"""The adapters of open sequences in forwards of the torch executor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from transformers import PreTrainedModel

from foreword.model.adapters.lora import LoraAdapter
from foreword.model.executors.torch.memories import TorchMemory
from foreword.model.kv.pages import PagePool
from foreword.model.kv.reads import Span


class TorchAdapters(TorchMemory):
    """Adapters, added to the rows of the sequences that name one. A sequence has the
    model alone until it is given an adapter.
    """

    takes = (LoraAdapter,)

    def __init__(self) -> None:
        self._adapters: dict[int, LoraAdapter] = {}
        """By sequence."""

    def empty(self) -> TorchAdapters:
        return TorchAdapters()

    def opening(
        self, pool: PagePool, id: int, text: Sequence[int], tenant: str
    ) -> None:
        self._adapters.pop(id, None)

    def close(self, pool: PagePool | None, id: int) -> None:
        self._adapters.pop(id, None)

    def give(self, executor: object, id: int, material: LoraAdapter) -> None:
        self._adapters[id] = material

    @contextmanager
    def during(
        self, model: PreTrainedModel, spans: Sequence[Span], rows: int
    ) -> Iterator[None]:
        """Add each adapter to the rows of its sequences, in a forward of so many."""
        own: dict[LoraAdapter, list[int]] = {}
        for span in spans:
            adapter = self._adapters.get(span.read.id)
            if adapter is not None:
                own.setdefault(adapter, []).extend(range(span.start, span.stop))
        with ExitStack() as during:
            for adapter, places in own.items():
                during.enter_context(adapter.on(places, rows))
            yield
