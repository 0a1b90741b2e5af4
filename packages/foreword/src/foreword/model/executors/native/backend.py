"""The native backend: a Hugging Face model in one C call per forward
(native/csrc/forward.c), from packed copies of its weights.

The probe compares its logits with the Hugging Face model's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model import architectures
from foreword.model.architectures import body, drop_weights, is_recurrent
from foreword.model.executors.native.angles import Angles
from foreword.model.executors.native.executor import NativeExecutor
from foreword.model.executors.native.layout import around, matrices_of, parts_of
from foreword.model.executors.native.matrices import looked_up
from foreword.model.executors.native.memories import NativeMemory
from foreword.model.executors.native.rows import (
    Rows,
    first_attention,
    head_size,
    kv_head_count,
    rows_of,
)
from foreword.model.executors.native.supported import inside, settings
from foreword.model.layers import has_codes
from foreword.native import forward
from foreword.native.openmp import in_parallel

if TYPE_CHECKING:
    from foreword.model.executors.native.codes import Packer
    from foreword.model.executors.native.offload import Stream


class NativeBackend(NativeExecutor):
    """A Hugging Face model, computed in C from packed copies of its weights."""

    def __init__(
        self,
        model: PreTrainedModel,
        angles: Angles,
        memories: Sequence[NativeMemory] = (),
        *,
        owned: bool = False,
        keeps_embeddings: bool = False,
        head_scale: float = 0,
    ) -> None:
        """Pack the weights. An `owned` model loses each weight once it is packed, so
        none is held twice; see `restore`.

        Embeddings tied to the LM head are then read from the packed head, unless
        `keeps_embeddings`: an encoder reads them too. `head_scale`: factor of hidden
        states before the LM head; 0 = as the config has it.
        """
        super().__init__(rows_of(model), angles, None, memories)
        self._hf, self._owned = model, owned
        self._keeps_embeddings = keeps_embeddings
        self._head_scale = head_scale
        self._stream: Stream | None = None
        """Thread that reads layers from a file; None = all are in memory."""
        self._layers = parts_of(model)
        if has_codes(model):
            from foreword.model.executors.native import codes

            codes.fill(model, self._layers)
        described = self._describe(model)
        if head_scale:
            described.logit_scale = head_scale
        self.describe(described, described.vocab)

    def restore(self) -> None:
        """Give the weights back to the model, so that another backend can run it.

        Raises ModelError if they were quantized.
        """
        if self._stream is not None:
            raise ModelError(
                "cannot restore weights: they do not fit in memory. Load a model "
                "without offload_folder="
            )
        if self.model.coding != forward.WHOLE:
            raise ModelError(
                "cannot restore weights: they are quantized. Load the model without "
                "weights="
            )
        from foreword.model.executors.native.unpack import restore

        restore(self._hf, self.model, self.matrices.held, tied=self._tied)

    def write(self, folder: Path) -> None:
        """Write the packed matrices to a folder, from which `offload` reads them."""
        from foreword.model.executors.native import offload

        offload.write(self.model, self.matrices.held, self._table, folder)

    def offload(
        self,
        folder: Path,
        free: int,
    ) -> int:
        """Hold the matrices of a folder instead, as many as fit in `free` bytes; return
        how many layers do not.

        The other layers are read from the folder in every forward.
        """
        from foreword.model.executors.native import offload

        self.model.table = None  # the folder has it, if it is needed
        self.matrices.drop(self.model)
        matrices, self._stream = offload.attach(self.model, folder, free)
        self.matrices.held += matrices
        for matrix in matrices:
            if matrix.data_ptr() == self.model.table:
                self._table = matrix
        self.model.stream = None if self._stream is None else self._stream.handle
        self.checks = [] if self._stream is None else [self._stream.check]
        self.describe(self.model, self.words, offload.size(folder))
        return 0 if self._stream is None else self._stream.layers

    def lend(self) -> AbstractContextManager[None]:
        """Let the model's own code run while inside, each part with its weights for as
        long as it runs.
        """
        if not self._owned:
            return nullcontext()
        from foreword.model.executors.native.unpack import lent

        return lent(self._hf, self.model, self.matrices.held, self.embed)

    def quantize(
        self,
        *others: forward.Model,
        coding: int = forward.BYTES,
    ) -> None:
        if self.model.coding == forward.WHOLE:
            self._keep_table()
        super().quantize(*others, coding=coding)

    def take_codes(self) -> float:
        """Multiply by the codes that linear layers hold (`coded`) instead of weights;
        return the bits of a weight.
        """
        whole = {held.data_ptr(): held for held in self.matrices.held}
        if not has_codes(self._hf):
            return 16
        if not self._leave_in_file():
            self._keep_table()
        self.matrices.drop(self.model)
        weights = 0
        placed = 0
        for described, name, count, packed in in_parallel(
            lambda matrix: (*matrix[:3], matrix[3](self.matrices.empty)),
            self._codes(whole),
        ):
            weights += count
            placed += 1
            setattr(described, name, self.matrices.keep(packed))
        self.model.coding = forward.GROUPS
        self.describe(self.model, self.words)
        return (
            sum(8 * codes.numel() for codes in self.matrices.held[-placed:]) / weights
        )

    def _codes(
        self, whole: dict[int, Tensor]
    ) -> Iterator[tuple[Any, str, int, Packer]]:
        """Yield struct, field, count of weights and packer of the codes of each matrix;
        take its packed weights out of `whole` (by address), so that they are freed.
        """
        from foreword.model.executors.native import codes, grouped

        described_layers = self.model.layer[: self.model.layers]
        for described, layer in zip(described_layers, self._layers, strict=True):
            of_layer = codes.matrices(layer)
            for name in matrices_of(described):
                packed = whole.pop(getattr(described, name))
                code = of_layer.get(name) or partial(grouped.whole, packed)
                yield described, name, packed.numel(), code
        head = architectures.lm_head(self._hf)
        packed = whole.pop(self.model.head)
        code = partial(grouped.whole, packed)
        if hasattr(head, "coded"):
            code = codes.coded(head)
        yield self.model, "head", packed.numel(), code

    def _keep_table(self) -> None:
        """Keep the embeddings apart, if they are looked up in the packed head; let go
        of the head, if the model has others.
        """
        if self.model.embedding:
            self._table = self._table.new_empty(0)
            self.model.table = None
            self.model.table_rows = 0
        elif not self.matrices.is_apart(self._table):
            self._table = self._table.clone()
            self.model.table = self.matrices.keep(self._table)

    def _leave_in_file(self) -> bool:
        """Look embeddings up in their GGUF file, if C reads their type; return that."""
        from foreword.model.executors.native import codes

        words: Any = self._hf.get_input_embeddings()
        rows = codes.rows(words) if self._owned else None
        if rows is None:
            return False
        address = self.model.embedding
        matrices = self.matrices.held
        self.matrices.held = [one for one in matrices if one.data_ptr() != address]
        words.weight = nn.Parameter(words.weight.new_empty(0), requires_grad=False)
        kind, self._table = rows
        self.model.embedding, self.model.table = None, self._table.data_ptr()
        self.model.table_kind = 1 + forward.BLOCKS.index(kind)
        return True

    def quantize_kv(self) -> None:
        """Hold keys and values in 8 bits from now on. No sequence may be open."""
        old, self.pool = (
            self.pool,
            rows_of(self._hf, forward.BYTES),
        )
        self.pool.prefixes.recurrent = old.prefixes.recurrent
        self.pool.spare = old.spare
        self.pool.attach(self.model.layer[: self.model.layers])
        self.describe(self.model, self.words, self.weight_bytes)

    def make_portable(self) -> None:
        """Multiply bfloat16 by fused operations alone, and turn by tables of our own:
        the same bits on every processor that has fused operations.
        """
        self.model.portable = 1
        self.angles.make_portable()
        self.pool.prefixes.clear()

    def empty_pool(self, kv: str | None = None) -> Rows:
        """Return an empty pool of this model's keys and values, in the form `kv`; None
        = as they are held here.
        """
        coding = self.pool.coding if kv is None else forward.BYTES
        return rows_of(self._hf, coding)

    def lm_head(
        self, hidden: Float[Tensor, "rows hidden"]
    ) -> Float[Tensor, "rows vocab"]:
        """Return the logits of the LM head, of scaled hidden states where a decoder
        scales them.
        """
        logits = super().lm_head(hidden)
        return logits * self._head_scale if self._head_scale else logits

    def embed(
        self,
        tokens: Int[Tensor, "*rows"],
    ) -> Float[Tensor, "*rows hidden"]:
        """Return the embeddings of tokens, as the model computes them."""
        if self.model.embedding:
            return self._hf.get_input_embeddings()(tokens)
        scale = _embed_scale(self._hf.get_input_embeddings())
        if kind := self.model.table_kind:
            from foreword.model.executors.native import codes

            rows = codes.unpacked(self._table, kind, self.model.hidden, tokens)
            return rows * scale
        return looked_up(self._table, tokens) * scale

    def _describe(self, model: PreTrainedModel) -> forward.Model:
        config = model.config.get_text_config()
        layers = self._layers
        self._experts = _experts(layers)
        # an owned model loses its weights below: read what depends on them before
        flags = settings(model)
        array = (forward.Layer * len(layers))()
        for described, layer in zip(array, layers, strict=True):
            self._describe_layer(described, layer)
        self.pool.attach(array)
        embeddings: Any = model.get_input_embeddings()
        lm_head = architectures.lm_head(model)
        vocab, hidden = lm_head.weight.shape
        head = self.matrices.pack(lm_head.weight)
        self._table = self.matrices.held[-1]
        self._tied = embeddings.weight is lm_head.weight
        # tied embeddings are then read from the packed head (`_table`)
        dropped = self._owned and self._tied and not self._keeps_embeddings
        dropped |= embeddings.weight.is_meta  # they are read from a file
        if self._owned and (dropped or not self._tied):
            drop_weights(lm_head)
        vectors = {
            name: self.matrices.keep(vector) for name, vector in around(model).items()
        }
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
            None if dropped else self.matrices.keep(embeddings.weight.detach()),
            vectors.pop("norm"),
            head,
            array,
            table=head,
            table_rows=len(self._table),
            embedding_scale=scale,
            experts=None if self._experts is None else ctypes.pointer(self._experts),
            **self._learned_positions(model),
            **flags,
            **vectors,
        )

    def _learned_positions(self, model: PreTrainedModel) -> dict[str, int]:
        learned = architectures.places(model)
        if learned is None:
            return {}
        address = self.matrices.keep(learned)
        return {"position_embedding": address, "position_count": len(learned)}

    def _describe_layer(
        self,
        described: forward.Layer,
        layer: Any,
    ) -> None:
        self.matrices.pack_layer(described, layer)
        if self._owned:
            drop_weights(layer)
            if architectures.routed(layer):
                from foreword.model.executors.native import experts

                experts.drop(layer)
        if not is_recurrent(layer):
            described.window = architectures.window(layer)


def _experts(layers: Sequence[Any]) -> forward.Experts | None:
    """Return the sizes of the experts of a model; None if it has none."""
    routed = next(filter(architectures.routed, layers), None)
    if routed is None:
        return None
    from foreword.model.executors.native import experts

    return experts.sizes(routed)


def _embed_scale(embeddings: Any) -> float:
    """Return the factor that the model multiplies embeddings by, rounded as the model
    rounds it.
    """
    unit = torch.ones((), dtype=torch.float32)
    scale = getattr(embeddings, "embed_scale", unit)
    return float(scale.to(embeddings.weight.dtype))


def _eps(norm: Any) -> float:
    """Return the epsilon of a norm; 1e-5 for the one kind that does not name it."""
    return getattr(norm, "eps", getattr(norm, "variance_epsilon", 1e-5))
