"""The graph backend: chains in one recording, and plain decoding whose next forward
begins before the host has the token.

The device draws the token and reads it at once, while the host appends it to the text.
All work is in one stream, so a forward that was begun in vain only costs its time.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from foreword.model.executors.cuda.backend import (
    CudaGraphBackend,
    on,
)
from foreword.model.executors.cuda.chain import (
    ChainShape,
    GrowsChains,
)
from foreword.model.kv.reads import Read
from foreword.sampling.draw import Draw, drawn_tokens


class AheadBackend(GrowsChains, CudaGraphBackend):
    """A graph backend that draws tokens and reads them without waiting for the host."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._buffers = []
        self._records_chains = self._kernel
        self._begun: dict[int, tuple[Read, Float[Tensor, "1 vocab"]]] = {}
        """By id: a read of one token that runs on the device already, and its logits.
        """

    def close(self, id: int) -> None:
        # another sequence may get this id, and the same tokens
        self._begun.pop(id, None)
        super().close(id)

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        begun, self._begun = self._begun, {}
        rows = {
            read.id: begun[read.id][1]
            for read in reads
            if read.id in begun and begun[read.id][0] == read
        }
        if not rows:
            return super().read(reads)
        rest = [read for read in reads if read.id not in rows]
        fresh = iter(())
        if rest:
            counts = [read.keep for read in rest]
            fresh = iter(super().read(rest).split(counts))
        parts = [rows[read.id] if read.id in rows else next(fresh) for read in reads]
        return torch.cat(parts)

    @torch.inference_mode()
    def read_and_draw(
        self, reads: Sequence[Read], draws: Sequence[Draw], more: Sequence[bool]
    ) -> tuple[Float[Tensor, "texts vocab"], list[int]]:
        """Run reads of committed tokens; return the logits after each, and the token
        drawn from them.

        `more`: the texts that go on. The forward over their tokens begins, and the next
        `read` of just these tokens takes its rows.
        """
        logits = self.read(reads)
        going = [row for row, goes_on in enumerate(more) if goes_on]
        # the device writes its tokens over these zeros
        after = [_following(reads[row], 0) for row in going]
        with on(self._device):
            drawn = drawn_tokens(logits, draws)
            on_gpu = self._device.type == "cuda"
            tokens = torch.empty(len(reads), dtype=torch.int64, pin_memory=on_gpu)
            tokens.copy_(drawn, non_blocking=True)
            wait = _mark(self._device)
            following = None
            if 0 < len(after) <= self._buckets[-1]:
                # by numbers: the host would wait for a mask
                following, _ = self._run(after, (), drawn[going])
            wait()
        chosen = tokens.tolist()
        if following is not None:
            for row, own_logits in zip(going, following.split(1), strict=True):
                read = _following(reads[row], chosen[row])
                self._begun[read.id] = read, own_logits
        return logits, chosen

    def _step(
        self, shape: ChainShape, table: Int[Tensor, "rows width"], states: list[Tensor]
    ) -> tuple[Float[Tensor, "1 vocab"], list[Tensor]]:
        return self._work(shape, table)[0][:1], states


def _following(read: Read, token: int) -> Read:
    """Return the read of a token that follows a read."""
    return Read(read.id, read.past + len(read.tokens), [token])


def _mark(device: torch.device) -> Callable[[], None]:
    """Return what waits for the work so far, not for later work."""
    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.Event()
    event.record()
    return event.synchronize
