"""Encoder of an encoder-decoder, and the memory of the sources of open sequences."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model.architectures import is_seq2seq
from foreword.model.kv.memories import SequenceMemory
from foreword.model.kv.pages import PagePool, PageTable
from foreword.model.kv.reads import Read, SourceKeys, source_id
from foreword.native.openmp import all_threads
from foreword.types import Encoded, Features, Source

SOURCE = 11
"""Tokens. Length of the source under which backends are checked and timed."""
_PROBES: WeakKeyDictionary[PreTrainedModel, Features] = WeakKeyDictionary()
"""By model, the sound to check and time it with: its encoder then runs once."""


class EncoderMemory(SequenceMemory):
    """The sources of open sequences, and the keys and values of their states.

    The encoder runs once a sequence, alone and unpadded, by the model's own code. The
    keys and values that the decoder makes of its states lie in pages of the same pool,
    in the rows of the layer that reads them. Keys and values of a decoder depend on its
    source, so sequences share none.
    """

    takes = (Sequence, Encoded)
    shares_prefixes = False

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self._model = model
        self.encoder: nn.Module = model.get_encoder()
        """Module that reads the source; a draft model may share its target's."""

    @property
    def probe_source(self) -> Sequence[int] | Features:
        """The source under which a backend is checked and timed."""
        return probe_source(self._model)

    @torch.inference_mode()
    def give(self, executor: Any, id: int, material: Sequence[int] | Encoded) -> None:
        """Run the encoder over an open sequence's source, before its first read."""
        with all_threads(), self.own_attention():
            states = encoded(self.encoder, material)
            layers = self._keys_and_values(states)
        length = states[0].shape[1]
        executor.pool.open(source_id(id), length)
        table = executor.pool.extend(source_id(id), 0, length)
        self._write(executor, table, length, layers)
        self.sequences[id] = SourceKeys(table, length)

    def opening(
        self,
        pool: PagePool,
        id: int,
        text: Sequence[int],
        tenant: str,
    ) -> None:
        self.close(pool, id)

    def close(self, pool: PagePool | None, id: int) -> None:
        if pool is not None:
            pool.close(source_id(id))
        super().close(pool, id)

    def check(self, read: Read) -> None:
        if read.id not in self.sequences:
            raise ModelError(
                f"cannot read sequence {read.id}: it has no source. Encode one after "
                "opening it"
            )

    def source(self, id: int) -> SourceKeys | None:
        return self.sequences[id]

    def own_attention(self) -> AbstractContextManager[None]:
        """Give the model its own attention while inside, where it has another."""
        return nullcontext()

    def _keys_and_values(self, states: Any) -> Sequence[Any]:
        """Return what each layer of the decoder makes of an encoder's output."""
        raise NotImplementedError

    def _write(
        self,
        executor: Any,
        table: PageTable,
        length: int,
        layers: Sequence[Any],
    ) -> None:
        """Write the keys and values of a source to its pages."""
        raise NotImplementedError


def encoded(encoder: nn.Module, source: Sequence[int] | Encoded) -> Any:
    """Run an encoder over one source, once; return its output for the model."""
    return (source if isinstance(source, Encoded) else Source(source)).encoded(encoder)


def reads_sound(model: PreTrainedModel) -> bool:
    """Return whether the encoder of a model reads sound."""
    return is_seq2seq(model.config) and model.main_input_name == "input_features"


def probe_source(model: PreTrainedModel) -> Sequence[int] | Features:
    """Return the source to check an encoder-decoder with; one sound for all."""
    noise = torch.Generator().manual_seed(2)
    config = model.config
    if not reads_sound(model):
        vocab = config.get_text_config().vocab_size
        return torch.randint(vocab // 8, vocab, (SOURCE,), generator=noise).tolist()
    if model not in _PROBES:
        frames = 2 * config.max_source_positions
        sound = torch.rand(
            config.num_mel_bins, frames, generator=noise, dtype=torch.float32
        )
        _PROBES[model] = Features(sound)
    return _PROBES[model]


def own_logits(model: PreTrainedModel, texts: Tensor) -> Tensor:
    """Return the model's own logits [batch, tokens, vocab] of texts [batch, tokens],
    without a cache; after `probe_source` for an encoder-decoder.
    """
    texts = texts.to(next(model.parameters()).device)
    inputs: dict[str, Any] = {"input_ids": texts}
    if is_seq2seq(model.config):
        source = probe_source(model)
        count = len(texts)
        if isinstance(source, Features):
            states = source.encoded(model.get_encoder())[0]
            inputs = {"encoder_outputs": (states.expand(count, -1, -1),)}
        else:
            ids = torch.tensor([source], device=texts.device)
            inputs = {"input_ids": ids.expand(count, -1)}
        inputs["decoder_input_ids"] = texts
    return model(**inputs, use_cache=False).logits
