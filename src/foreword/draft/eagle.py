"""One decoder layer on top of the target's own thoughts writes ahead (EAGLE-3: Li et al. 2025, arXiv 2503.01840).

Asks the head (eagle_head.py) about many sequences at once; knows how much of each it has read.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from foreword.draft.base import HEAD, Source
from foreword.draft.eagle_files import load
from foreword.draft.eagle_head import EagleHead
from foreword.draft.eagle_native import NativeHead, refused
from foreword.draft.eagle_thoughts import Thoughts, spread
from foreword.draft.growing import GrowingDrafter
from foreword.draft.heard import Heard
from foreword.errors import InvalidRequest
from foreword.model import Mode, Model, Read, Tokenizer
from foreword.model.attention import attend
from foreword.model.linear import MIN_ROWS, swap_in
from foreword.model.packing import Packing
from foreword.native.openmp import threads_for
from foreword.types import Batch, Sequence

CHUNK = 512
"""Tokens read at a time while catching up with a long text."""
ROOM = 256
"""Places kept beyond a text for guesses that may not stay."""


class _Asked(Packing):
    """Reads many sequences through one head, and remembers what it thought at the end of each text and its guesses.

    The plain definition of `NativeHead` in eagle_native.py.
    """

    mode = Mode.TREE

    def __init__(self, head: EagleHead, target: Model) -> None:
        super().__init__(target.device)
        self._head, self._vocab, self._threads = head, target.vocab, threads_for(head)
        self._embed = target.embed if head.embed_tokens is None else head.embed_tokens
        self.context = min(target.context, head.config.llama.max_position_embeddings)
        self.thoughts = Thoughts()
        swap_in(head)  # after it was counted

    def close(self, id: int) -> None:
        super().close(id)
        self.thoughts.forget(id)

    @torch.inference_mode()
    def read(self, reads: List[Read]) -> Float[Tensor, "kept vocab"]:
        with self._threads():
            rows = self._pack(reads)
            lack = max(0, MIN_ROWS - len(rows.tokens))  # a single row would be summed in another order
            packed = torch.tensor([rows.tokens + [0] * lack, rows.positions + [0] * lack], device=self._device)
            states = _at_least(torch.cat([self._before(read) for read in reads]), MIN_ROWS)

            def seen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                return attend(self._head.midlayer.self_attn, q, k, v, None, plan=rows.plan)[0]

            embedded = self._embed(packed[:1]).to(states.dtype)
            thoughts = self._head.think(embedded, states[None], packed[1:], seen)[0, : len(rows.tokens)]
            self.thoughts.keep(reads, thoughts)
            if not rows.kept:
                return thoughts.new_empty(0, self._vocab)
            said = self._head.say(_at_least(thoughts[rows.kept], MIN_ROWS))[: len(rows.kept)]
            return spread(said, self._head.tokens, self._vocab)

    def _before(self, read: Read) -> Float[Tensor, "tokens hidden"]:
        """What was thought before each token: by the target along the text, by this head after a guess."""
        if not read.parents:
            given = self.thoughts.given(read.id).to(self._head.fc.weight.dtype)
            return self._head.fc(_at_least(given, MIN_ROWS))[: len(given)]
        parents = read.parents[read.held :]
        return self.thoughts.of(read.id)[[parent + 1 for parent in parents]]


class EagleDrafter(GrowingDrafter):
    """Guesses with a head that was trained on the target's states, a forward of one layer for each level."""

    summary = "one layer on top of the target's own thoughts writes ahead"
    takes, needs = HEAD, True

    def __init__(self, head: EagleHead, target: Model) -> None:
        """`head` is in the target's dtype, on its device; its linear layers are packed where that is faster."""
        head.eval().requires_grad_(False)
        self._reader = _Asked(head, target) if refused(head, target) else NativeHead(head, target)
        super().__init__(self._reader)
        self.wants = head.config.states
        self._heard = Heard()
        self._read: dict[int, int] = {}
        """Rows of each sequence that hold what they always will."""

    @classmethod
    def load(cls, source: Source, target: Model, tokenizer: Tokenizer | None) -> EagleDrafter:
        del tokenizer  # a head speaks the target's own tokens
        if not isinstance(source, str | Path):
            raise InvalidRequest(f"this method needs {HEAD}: give draft='folder or hub id'")
        head = load(source, target.hf.config)
        target.hears(head.config.states)
        nn.Module.to(head, target.device, target.dtype)
        made = cls(head, target)
        if isinstance(made._reader, NativeHead):
            made._reader.lighten()
        return made

    def hear(self, sequence: Sequence, start: int, hidden: Float[Tensor, "tokens features"]) -> None:
        self._heard.add(sequence, start, hidden)

    def fit(self, batch: Batch, sequence: Sequence, nodes: int) -> int:
        # The first token of a text follows nothing that was thought.
        heard = len(sequence.tokens) > 1 and self._heard.up_to_date(sequence)
        return super().fit(batch, sequence, nodes) if heard else 0

    def catch_up(self, sequence: Sequence) -> Read:
        name, tokens = sequence.id, sequence.tokens
        if name not in self._read:
            self._reader.open(name, sequence.prompt + sequence.params.max_tokens + ROOM)
            self._read[name] = 0
        last = len(tokens) - 2
        start = min(self._read[name], last)  # the last row is always read, for what it says comes next
        states = self._heard.since(sequence, start)
        while len(states) > CHUNK:
            self._reader.thoughts.give(name, states[:CHUNK])
            self._reader.read([Read(name, start, tokens[start + 1 : start + 1 + CHUNK], keep=0)])
            start, states = start + CHUNK, states[CHUNK:]
        self._reader.thoughts.give(name, states)
        self._read[name] = last + 1
        return Read(name, start, tokens[start + 1 :])

    def release(self, sequence: Sequence) -> None:
        super().release(sequence)
        self._heard.forget(sequence)
        self._read.pop(sequence.id, None)


def _at_least(rows: Tensor, count: int) -> Tensor:
    """The rows, and copies of the last where there are fewer."""
    return rows if len(rows) >= count else torch.cat([rows, rows[-1:].expand(count - len(rows), -1)])
