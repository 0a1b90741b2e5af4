"""The CPU backend of Llama-like models: one C call per forward (native/csrc/forward.c),
from the same weights.

The probe compares its logits with the Hugging Face model's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from ctypes import byref, c_int64
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model import architectures
from foreword.model.architectures import body, drop_weights, is_recurrent
from foreword.model.cpu import experts, grouped, offload
from foreword.model.cpu.cross import parts_of
from foreword.model.cpu.images import ImageKernel
from foreword.model.cpu.kernel import Rotary
from foreword.model.cpu.layout import around, matrices_of
from foreword.model.cpu.rows import first_attention, head_size, kv_head_count, rows_of
from foreword.model.cpu.supported import inside, ropes, settings
from foreword.model.cpu.unpack import lent, looked_up, restore
from foreword.model.pool.plan import Read
from foreword.native import forward
from foreword.native.openmp import in_parallel
from foreword.native.workspace import multiplied


class CpuBackend(ImageKernel):
    """A Hugging Face model, computed in C from packed copies of its weights."""

    shares_embeddings = False
    """Whether something else reads the embeddings, which then stay in their module."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        owned: bool = False,
    ) -> None:
        """Pack the weights. An `owned` model loses each weight once it is packed, so
        none is held twice; see `restore`.

        Embeddings tied to the LM head are then read from the packed head.
        """
        super().__init__(
            rows_of(model),
            turns_of(model),
            getattr(body(model), "embedding_multiplier", 1),
        )
        self._hf, self._owned = model, owned
        grouped.fill(model, parts_of(model))
        self._warm = query_scale(model.config.get_text_config())
        described = self._describe(model)
        self.describe(described, described.vocab)

    def restore(self, model: PreTrainedModel | None = None) -> None:
        """Give the weights back to the model, or to another one of its kind, so that
        another backend can run it.

        Raises ModelError if they were quantized.
        """
        if self._stream is not None:
            raise ModelError(
                "cannot restore weights: they do not fit in memory. Load a model "
                "without offload_folder="
            )
        if self._model.coding != forward.WHOLE:
            raise ModelError(
                "cannot restore weights: they are quantized. Load the model without "
                "weights="
            )
        target = self._hf if model is None else model
        restore(target, self._model, self._held, tied=self._tied)

    def write(self, folder: Path) -> None:
        """Write the packed matrices to a folder, from which `offload` reads them."""
        offload.write(self._model, self._held, self._table, folder)

    def offload(self, folder: Path, free: int) -> int:
        """Hold the matrices of a folder instead, as many as fit in `free` bytes; return
        how many layers do not.

        The other layers are read from the folder in every forward.
        """
        self._drop_matrices(self._model)
        matrices, self._stream = offload.attach(self._model, folder, free)
        self._held += matrices
        for matrix in matrices:
            if matrix.data_ptr() == self._model.table:
                self._table = matrix
        self._model.stream = None if self._stream is None else self._stream.handle
        self.describe(self._model, self._words, offload.size(folder))
        return 0 if self._stream is None else self._stream.layers

    def lend(self) -> AbstractContextManager[None]:
        """Let the model's own code run while inside, each part with its weights for as
        long as it runs.
        """
        if not self._owned:
            return nullcontext()
        return lent(self._hf, self._model, self._held, self.embed)

    def quantize(
        self,
        *others: forward.Model,
        coding: int = forward.BYTES,
    ) -> None:
        if self._model.coding == forward.WHOLE:
            self._keep_table()
        super().quantize(*others, coding=coding)

    def take_codes(self) -> float:
        """Multiply by the codes that linear layers hold (`coded`) instead of weights;
        return the bits of a weight.
        """
        whole = {held.data_ptr(): held for held in self._held}
        if not any(hasattr(part, "coded") for part in self._hf.modules()):
            return 16
        self._keep_table()
        self._drop_matrices(self._model)
        weights = 0
        placed = 0
        for described, name, count, codes in in_parallel(
            lambda matrix: (*matrix[:3], matrix[3]()), self._codes(whole)
        ):
            weights += count
            placed += 1
            setattr(described, name, self._hold(codes))
        self._model.coding = forward.GROUPS
        self.describe(self._model, self._words)
        return sum(8 * codes.numel() for codes in self._held[-placed:]) / weights

    def _codes(
        self, whole: dict[int, Tensor]
    ) -> Iterator[tuple[Any, str, int, Callable[[], Tensor]]]:
        """Yield struct, field, count of weights and packer of the codes of each matrix;
        take its packed weights out of `whole` (by address), so that they are freed.
        """
        described_layers = self._model.layer[: self._model.layers]
        for described, layer in zip(described_layers, parts_of(self._hf), strict=True):
            codes = grouped.matrices(layer)
            for name in matrices_of(described):
                packed = whole.pop(getattr(described, name))
                code = codes.get(name) or partial(grouped.whole, packed)
                yield described, name, packed.numel(), code
        head = architectures.lm_head(self._hf)
        packed = whole.pop(self._model.head)
        code = partial(grouped.whole, packed)
        if hasattr(head, "coded"):
            code = grouped.coded(head)
        yield self._model, "head", packed.numel(), code

    def _keep_table(self) -> None:
        """Keep the embeddings apart, if they are tied and looked up in the packed head;
        else let go of that.
        """
        if self._model.embedding:
            self._table = self._table.new_empty(0)
            self._model.table = None
            self._model.table_rows = 0
        else:
            self._table = self._table.clone()
            self._model.table = self._keep(self._table)

    def quantize_kv(self) -> None:
        """Hold the keys and values of sequences opened from now on in 8 bits.

        None may be open.
        """
        old, self.pool = self.pool, rows_of(self._hf, forward.BYTES)
        self.pool.prefixes.recurrent = old.prefixes.recurrent
        self.pool.spare = old.spare
        self.pool.attach(self._model.layer[: self._model.layers])
        self.describe(self._model, self._words, self.weight_bytes)

    def read_hidden(
        self, reads: Sequence[Read], layers: Sequence[int]
    ) -> tuple[Float[Tensor, "kept vocab"], Float[Tensor, "rows features"]]:
        kept = sum(read.keep for read in reads)
        logits = torch.empty(kept, self._model.vocab, dtype=torch.float32)
        forward = self._prepare(reads, logits)
        size = len(layers) * self._model.hidden
        states = torch.empty(forward.rows, size, dtype=torch.float32)
        numbers = (c_int64 * len(layers))(*layers)
        forward.hidden_layer_count = len(layers)
        forward.hidden_layers = ctypes.addressof(numbers)
        forward.hidden_states = states.data_ptr()
        self._library.foreword_forward(
            byref(self._model), byref(forward), self._threads
        )
        self._note(reads)
        return logits, states

    def lm_head(
        self, hidden: Float[Tensor, "rows hidden"]
    ) -> Float[Tensor, "rows vocab"]:
        lm_head = forward.Model.from_buffer_copy(self._model)
        lm_head.layers = 0
        lm_head.norm = None
        lm_head.logit_cap = 0
        lm_head.logit_scale = 0
        return multiplied(self._library, lm_head, self._scratch, hidden, self._threads)

    def embed(self, tokens: Int[Tensor, "*rows"]) -> Float[Tensor, "*rows hidden"]:
        """Return the embeddings of tokens, as the model computes them."""
        if self._model.embedding:
            return self._hf.get_input_embeddings()(tokens)
        scale = _embed_scale(self._hf.get_input_embeddings())
        return looked_up(self._table, tokens) * scale

    def _describe(self, model: PreTrainedModel) -> forward.Model:
        config = model.config.get_text_config()
        layers = parts_of(model)
        routed = next(filter(architectures.routed, layers), None)
        self._experts = None if routed is None else experts.sizes(routed)
        # an owned model loses its weights below: read what depends on them before
        flags = settings(model)
        array = (forward.Layer * len(layers))()
        for described, layer in zip(array, layers, strict=True):
            self._describe_layer(described, layer)
        self.pool.attach(array)
        embeddings: Any = model.get_input_embeddings()
        lm_head = architectures.lm_head(model)
        learned = architectures.places(model)
        vocab, hidden = lm_head.weight.shape
        head = self._pack(lm_head.weight)
        self._table = self._held[-1]
        self._tied = embeddings.weight is lm_head.weight
        # tied embeddings are then read from the packed head (`_table`)
        dropped = self._owned and self._tied and not self.shares_embeddings
        if self._owned and (dropped or not self._tied):
            drop_weights(lm_head)
        vectors = {name: self._keep(vector) for name, vector in around(model).items()}
        if dropped:
            nothing = embeddings.weight.new_empty(0)
            embeddings.weight = nn.Parameter(nothing, requires_grad=False)
        scale = getattr(body(model), "embedding_multiplier", _embed_scale(embeddings))
        return forward.Model(
            len(layers),
            hidden,
            architectures.query_heads(config),
            kv_head_count(model),
            head_size(model),
            max(map(inside, layers)),
            vocab,
            _eps(architectures.last_norm(model)),
            architectures.attention(first_attention(model)).scaling,
            None if dropped else self._keep(embeddings.weight.detach()),
            vectors.pop("norm"),
            head,
            array,
            table=head,
            table_rows=len(self._table),
            embedding_scale=scale,
            experts=None if self._experts is None else ctypes.pointer(self._experts),
            position_embedding=None if learned is None else self._keep(learned),
            position_count=0 if learned is None else len(learned),
            **flags,
            **vectors,
        )

    def _describe_layer(
        self,
        described: forward.Layer,
        layer: Any,
    ) -> None:
        super()._describe_layer(described, layer)
        if self._owned:
            drop_weights(layer)
            if architectures.routed(layer):
                experts.drop(layer)
        if not is_recurrent(layer):
            described.window = architectures.window(layer)


def _embed_scale(embeddings: Any) -> float:
    """Return the factor that the model multiplies embeddings by, rounded as the model
    rounds it.
    """
    one = torch.ones((), dtype=torch.float32)
    scale = getattr(embeddings, "embed_scale", one)
    return float(scale.to(embeddings.weight.dtype))


def turns_of(model: PreTrainedModel) -> Sequence[Rotary | None]:
    """Return the rotary embedding of each layer; None = it has none."""
    inner = body(model)
    config = model.config.get_text_config()
    layers = parts_of(model)
    names = [name for name in ("rotary_emb", "pos_emb") if hasattr(inner, name)]
    kinds = [None] * len(layers)
    if not names:
        return kinds
    rotary = getattr(inner, names[0])
    if type(inner).__name__.startswith("Cohere"):
        rotary = partial(_half_split, rotary)
    if type(inner).__name__.startswith("GptOss"):
        rotary = partial(_doubled, rotary)
    sections = [rope.get("mrope_section") for rope in ropes(config)]
    if section := next(filter(None, sections), None):
        rotary = partial(_multimodal, rotary, section)
    if ropes(config) != [config.rope_parameters]:
        kinds = config.layer_types
    by_kind = {
        kind: rotary if kind is None else partial(rotary, layer_type=kind)
        for kind in set(kinds)
    }
    return [
        by_kind[kind] if architectures.turns(layer) else None
        for kind, layer in zip(kinds, layers, strict=True)
    ]


def _half_split(
    rotary: Rotary, like: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Return interleaved angles (each twice, side by side) in the half-split layout of
    the other models.
    """
    cos, sin = (
        torch.cat([table[..., ::2], table[..., 1::2]], dim=-1)
        for table in rotary(like, positions)
    )
    return cos, sin


def _doubled(
    rotary: Rotary,
    like: Tensor,
    positions: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return angles that a model has once for both halves of a head."""
    cos, sin = rotary(like, positions)
    cos = torch.cat([cos, cos], dim=-1)
    sin = torch.cat([sin, sin], dim=-1)
    return cos, sin


def _multimodal(
    rotary: Rotary,
    section: list[int],
    like: Tensor,
    positions: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return multimodal angles (M-RoPE); a position of text is the same in all three
    directions.
    """
    tables = rotary(like, positions.expand(3, -1, -1))
    cos, sin = (joined(table, section) for table in tables)
    return cos, sin


def joined(
    table: Float[Tensor, "*grid 1 position dim"], section: list[int]
) -> Float[Tensor, "1 position dim"]:
    """Return M-RoPE angles: each section of a head's dimensions uses one axis (time,
    height or width).

    Some versions of transformers join them in the rotary embedding, others in
    attention.
    """
    if table.dim() == 3:
        return table
    parts = table.split(section * 2, dim=-1)
    return torch.cat([part[number % 3] for number, part in enumerate(parts)], dim=-1)


def query_scale(config: Any) -> Callable[[Tensor], Tensor] | None:
    """Return the position-dependent factor of queries (Llama 4); None if there is none.

    It grows with the logarithm of the number of whole contexts before the position.
    """
    for rope in ropes(config):
        if beta := rope.get("llama_4_scaling_beta"):
            length = rope["original_max_position_embeddings"]
            return lambda positions: (
                1 + beta * torch.log(1 + torch.floor(positions / length))
            )
    return None


def _eps(norm: Any) -> float:
    """Return the epsilon of a norm; 1e-5 for the one kind that does not name it."""
    return getattr(norm, "eps", getattr(norm, "variance_epsilon", 1e-5))
