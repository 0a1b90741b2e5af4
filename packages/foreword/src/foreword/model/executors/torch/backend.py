"""Pool backend: a Hugging Face model with our attention, sequences packed."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from foreword.model.architectures import body, lm_head
from foreword.model.backend import Mode
from foreword.model.executors.torch.hooks import CapturesHiddenStates, resumed
from foreword.model.executors.torch.kv_pool import KVPool
from foreword.model.executors.torch.memories import TorchMemory
from foreword.model.executors.torch.packed_linear import MIN_ROWS, Tiles, unpacked
from foreword.model.executors.torch.packing import Packing
from foreword.model.executors.torch.plan import Plan
from foreword.model.kv.reads import Read, Span
from foreword.native.openmp import all_threads

EVEN = 32
"""Rows of a forward are a multiple of this for models with unpacked weights, such as
routers. torch computes the sigmoid of the elements left over after registers of 32 with
another function, whose bits differ."""


class PoolBackend(Packing, CapturesHiddenStates):
    """A backend that packs all sequences in one row; the plan keeps them apart."""

    POOL: type[KVPool] = KVPool
    """Kind of its own pages."""
    probed = True

    def __init__(
        self,
        model: PreTrainedModel,
        mode: Mode = Mode.TREE,
        memories: Sequence[TorchMemory] = (),
        *,
        pool: KVPool | None = None,
        adjacent: bool = False,
    ) -> None:
        """`adjacent`: sequences reserve their pages when they are opened.
        Length-dependent models always do.

        Their rows depend on the forwards that read them, so a text that is read again
        may differ. `pool`: pages of another executor, as whose guest it reads.
        """
        self._rope = dynamic_rope_of(model)
        pages = pool or self.POOL(adjacent=adjacent or self._rope is not None)
        super().__init__(next(model.parameters()).device, memories, pool=pages)
        self.guest = pool is not None
        self.mode = mode
        self.model = model
        self._tiled = any(
            unpacked(part) for part in (body(model), lm_head(model)) if part is not None
        )
        self.windows: dict[int, int | None] = {}
        """Sliding window that each layer passed to attention in the last forward."""

    @property
    def depends(self) -> bool:
        """Whether rotary embeddings depend on the length of the text."""
        return self._rope is not None

    def twin(self, *, shares: bool) -> "PoolBackend":
        """Return an executor of the same model, with its own pages or as a guest."""
        memories = self.memories
        if not shares:
            memories = [memory.empty() for memory in memories]
        return PoolBackend(
            self.model,
            self.mode,
            memories,
            pool=self.pool if shares else None,
            adjacent=self.pool.adjacent,
        )

    def read(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        early = self._early(reads) if self.pool.early else None
        with all_threads(), ExitStack() as during:
            if early is not None:
                states = early.complete(reads, self.move)
                during.enter_context(resumed(self.model, early.layers, states))
            return torch.cat([self._forward(part) for part in self._forwards(reads)])

    def _forwards(self, reads: Sequence[Read]) -> Sequence[Sequence[Read]]:
        if self._rope is None:
            return [reads]
        return [[part] for read in reads for part in self._rope.parts(read)]

    def _own_rows(
        self, rows: Float[Tensor, "captured features"], count: int
    ) -> Float[Tensor, "rows features"]:
        return rows[:count]  # the rest is padding

    @torch.inference_mode()
    def _forward(self, reads: Sequence[Read]) -> Float[Tensor, "kept vocab"]:
        logits = self._read_spans(self._spans(reads))
        self._note(reads)
        return logits

    def _read_spans(self, spans: tuple[Span, ...]) -> Float[Tensor, "kept vocab"]:
        """Run the model over these spans, whose pages exist; return the kept logits."""
        rows = self._laid_out(spans)
        tokens = rows.tokens
        positions = rows.positions
        logit_rows = rows.kept
        count = len(rows.kept)
        spare = -len(tokens) % (EVEN if self._tiled else MIN_ROWS)
        tokens += tokens[-1:] * spare
        positions += positions[-1:] * spare
        logit_rows += (logit_rows[-1:] or [0]) * (MIN_ROWS - count)
        packed = torch.tensor([tokens, positions], device=self._device)
        if self._rope is not None:
            self._rope.forget()
        with ExitStack() as during:
            if self._tiled:
                during.enter_context(Tiles())
            for memory in self.memories:
                context = memory.during(self.model, rows.plan.spans, len(tokens))
                during.enter_context(context)
            logits = self._logits(packed, logit_rows, rows.plan)
        self.windows = rows.plan.windows
        return logits[:count]

    def _logits(
        self, packed: Int[Tensor, "2 rows"], logit_rows: list[int], plan: Plan
    ) -> Float[Tensor, "kept vocab"]:
        """Run the model over the tokens and positions; return the kept rows' logits."""
        for memory in self.memories:
            logits = memory.run(self.model, packed, logit_rows, plan)
            if logits is not None:
                return logits
        output = self.model(
            input_ids=packed[:1],
            position_ids=packed[1:],
            use_cache=False,
            logits_to_keep=torch.tensor(logit_rows, device=self._device),
            plan=plan,
        )
        return output.logits[0]


PROBED = [1, 2, 3]
"""Tokens of every vocabulary, read to see if a forward can go on midway."""
_PROBE = -1
"""Id of a sequence that no request has."""


def resumes(backend: PoolBackend) -> bool:
    """Return whether a forward of this backend can go on after the first layer with the
    same bits: its layers return one tensor, and later ones read nothing else of it.
    """
    if type(backend) is not PoolBackend or backend.memories or backend.depends:
        return False
    read = Read(_PROBE, 0, PROBED, keep=len(PROBED))
    backend.open(_PROBE, len(PROBED))
    try:
        whole, states = backend.read_hidden([read], (1,))
        with resumed(backend.model, 1, states):
            return torch.equal(whole, backend.read([read]))
    except Exception:  # noqa: BLE001 - layers of another form; all of them run then
        return False
    finally:
        backend.close(_PROBE)


@dataclass(frozen=True, slots=True)
class DynamicRope:
    """Dependence of a model's rotary embeddings on the sequence length."""

    border: int
    """Tokens. Up to this length the embeddings do not depend on the length."""
    rotaries: Sequence[Any]
    """The rotary modules; some keep the longest length seen in any sequence."""
    twice: bool
    """Whether there are two sets of angles (longrope), or one for each length."""

    def parts(self, read: Read) -> Sequence[Read]:
        """Split a read where its draft tokens would change the angles."""
        draft_tokens = (
            max(read.keep - 1, 0)
            if read.parents is None
            else len(read.parents) - read.held
        )
        fixed = len(read.tokens) - draft_tokens
        committed, longest = read.past + fixed, read.past + max(read.depths) + 1
        if (
            longest <= self.border
            or draft_tokens == 0
            or (self.twice and committed > self.border)
        ):
            return [read]
        first = Read(
            read.id,
            read.past,
            read.tokens[:fixed],
            keep=max(read.keep - draft_tokens, 0),
        )
        one_by_one = [
            _draft_read(read, fixed, i, keep=i >= draft_tokens - read.keep)
            for i in range(draft_tokens)
        ]
        return [first, *one_by_one] if fixed else one_by_one

    def forget(self) -> None:
        """Reset the cached lengths before the next forward."""
        for rotary in self.rotaries:
            rotary.max_seq_len_cached = 0


def dynamic_rope_of(model: PreTrainedModel) -> DynamicRope | None:
    """Return the dependence of a model's angles on the length; None without one."""
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") not in ("dynamic", "longrope"):
        return None
    border = (
        rope.get("original_max_position_embeddings") or config.max_position_embeddings
    )
    rotaries = [
        module for module in model.modules() if hasattr(module, "max_seq_len_cached")
    ]
    return DynamicRope(border, rotaries, rope["rope_type"] == "longrope")


def _draft_read(read: Read, fixed: int, number: int, *, keep: bool) -> Read:
    """Return a read of one draft token alone, after those before it have been read."""
    token, past = read.tokens[fixed + number], read.past + fixed
    if read.parents is None:
        return Read(read.id, past + number, [token], keep=int(keep))
    held = read.held + number
    return Read(read.id, past, [token], read.parents[: held + 1], int(keep), held)
