"""Provides encoder-decoder targets: how their texts begin and end, and the backend that
runs the encoder.

A prompt is the source, which the encoder reads once. The text of a sequence is what the
decoder reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import (
    DynamicCache,
    EncoderDecoderCache,
    PreTrainedConfig,
    PreTrainedModel,
)

from foreword.errors import InvalidRequest, ModelError
from foreword.model.backend import Mode
from foreword.model.cache_backend import CacheBackend
from foreword.model.loading.config import SPEECH
from foreword.native.openmp import all_threads
from foreword.sampling.suppressed import Suppressed
from foreword.types import Encoded, Features, SamplingParams, Source

SOURCE = 11
"""Tokens. Length of the source under which backends are checked and timed."""
_PROBES: WeakKeyDictionary[PreTrainedModel, Features] = WeakKeyDictionary()
"""By model, the sound under which it is checked and timed: an encoder of sound takes
seconds, and runs once.
"""


@dataclass(frozen=True, slots=True)
class Seq2Seq:
    """The tokens that the generation settings of an encoder-decoder force or forbid."""

    start: tuple[int, ...]
    """Ids that the decoder reads before the answer: the start token, then a forced
    first token, if there is one.
    """
    end: int | None = None
    """Id of the last token of an answer that reaches `max_tokens`; None = the one the
    model gives.
    """
    forbidden: tuple[tuple[int, ...], ...] = ()
    """Words, as token ids, that no answer holds."""
    not_first: tuple[int, ...] = ()
    """Ids that do not follow `start`."""
    longest: int | None = None
    """Tokens. Longest source; None = the context of the decoder."""
    sound: bool = False
    """Whether the source is audio; speech/rules.py then has its rules."""

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        name: str,
    ) -> Seq2Seq | None:
        """Return the rules of an encoder-decoder; None for another model.

        Raises ModelError where its settings name no start token, or a list of tokens
        where one is needed.
        """
        if not is_seq2seq(model.config):
            return None
        settings = model.generation_config
        vocab = model.config.get_text_config().vocab_size
        decoder_vocab = getattr(model.config, "decoder_vocab_size", None) or vocab
        if decoder_vocab != vocab:
            raise ModelError(
                f"cannot run {name}: its encoder has {vocab} tokens and its decoder "
                f"{decoder_vocab}. Use a model whose encoder and decoder share one "
                "vocabulary"
            )
        start = _start(settings, name)
        if reads_sound(model):
            if not is_speech(model):
                raise ModelError(
                    f"cannot run {name}: of the models that read sound only {SPEECH} "
                    "is supported"
                )
            return cls((start,), sound=True)
        first = _token(settings, "forced_bos_token_id", name)
        rules = cls(
            (start,) if first is None else (start, first),
            _token(settings, "forced_eos_token_id", name),
            _forbidden(settings),
            tuple(getattr(settings, "begin_suppress_tokens", None) or ()),
            getattr(model.config, "max_encoder_position_embeddings", None),
        )
        forbidden = chain.from_iterable(rules.forbidden)
        named = [*rules.start, *rules.not_first, *forbidden]
        if wrong := [token for token in named if not 0 <= token < vocab]:
            raise ModelError(
                f"cannot run {name}: its generation settings name the ids {wrong[:5]}, "
                f"and it has {vocab} tokens. Correct generation_config.json"
            )
        return rules

    def applied(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters of a request that forbids these tokens too."""
        if self.forbidden:
            params = replace(params, bad_word_ids=params.bad_word_ids + self.forbidden)
        if self.not_first:
            first = Suppressed(self.not_first, len(self.start))
            params = replace(params, processors=(first, *params.processors))
        return params

    def last(self, params: SamplingParams) -> int | None:
        """Return the token that ends an answer at `max_tokens`; None where the request
        asks for another end.
        """
        return None if params.ignore_eos or params.structured else self.end


class Seq2SeqBackend(CacheBackend):
    """A backend that runs the encoder once a sequence, and its decoder as CacheBackend
    does.

    Keys and values of the source are computed by the first forward and shared by all
    later ones.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        mode: Mode,
        *,
        cache: bool = True,
    ) -> None:
        super().__init__(model, mode, cache=cache)
        self.encoder: nn.Module = model.get_encoder()

    @property
    def probe_source(self) -> Sequence[int] | Features:
        """The source under which it is checked and timed."""
        return probe_source(self._model)

    def encode(
        self,
        id: int,
        source: Sequence[int] | Encoded,
    ) -> None:
        """Run the encoder over the source of an open sequence, before its
        first read.
        """
        state = self._states[id]
        with all_threads():
            state.inputs = {"encoder_outputs": encoded(self.encoder, source)}
        # Without the config, whose number of layers is the encoder's in some kinds.
        cache = None
        if self._cache:
            cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        state.beginning = (0, cache)
        state.marks = [state.beginning]

    def _ids(self, ids: Int[Tensor, "1 rows"]) -> dict[str, Any]:
        return {"decoder_input_ids": ids}


def encoded(encoder: nn.Module, source: Sequence[int] | Encoded) -> Any:
    """Run an encoder over one source, unless it has read it; return its output, as the
    model takes it.
    """
    return (source if isinstance(source, Encoded) else Source(source)).encoded(encoder)


def is_seq2seq(config: PreTrainedConfig) -> bool:
    """Return whether a config is of an encoder-decoder."""
    return bool(getattr(config, "is_encoder_decoder", False))


def own_logits(
    model: PreTrainedModel, texts: Int[Tensor, "batch tokens"]
) -> Float[Tensor, "batch tokens vocab"]:
    """Return the model's own logits of these texts, without a cache; after
    `probe_source` for an encoder-decoder.
    """
    texts = texts.to(next(model.parameters()).device)
    inputs: dict[str, Any] = {"input_ids": texts}
    if is_seq2seq(model.config):
        source, count = probe_source(model), len(texts)
        if isinstance(source, Features):
            states = source.encoded(model.get_encoder())[0]
            inputs = {"encoder_outputs": (states.expand(count, -1, -1),)}
        else:
            ids = torch.tensor([source], device=texts.device)
            inputs = {"input_ids": ids.expand(count, -1)}
        inputs["decoder_input_ids"] = texts
    return model(**inputs, use_cache=False).logits


def probe_source(model: PreTrainedModel) -> Sequence[int] | Features:
    """Return the source under which an encoder-decoder is checked and timed; for one of
    sound always the same.
    """
    noise, config = torch.Generator().manual_seed(2), model.config
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


def reads_sound(model: PreTrainedModel) -> bool:
    """Return whether the encoder of a model reads sound."""
    return is_seq2seq(model.config) and model.main_input_name == "input_features"


def is_speech(model: PreTrainedModel) -> bool:
    """Return whether a model reads sound and is supported."""
    return reads_sound(model) and model.config.model_type == SPEECH


@runtime_checkable
class HasSeq2Seq(Protocol):
    """A model that may be an encoder-decoder."""

    name: str
    seq2seq: Seq2Seq | None


def check_decoder_only(model: HasSeq2Seq, action: str) -> None:
    """Raise InvalidRequest for an encoder-decoder, with which `action` does
    not work.
    """
    if model.seq2seq is not None:
        raise InvalidRequest(
            f"cannot {action}: {model.name} is an encoder-decoder. Use a decoder-only "
            "model"
        )


def _start(settings: Any, model: str) -> int:
    start = _token(settings, "decoder_start_token_id", model)
    start = _token(settings, "bos_token_id", model) if start is None else start
    if start is None:
        raise ModelError(
            f"cannot run {model}: its generation settings name no token that the "
            "decoder starts with. Set decoder_start_token_id in generation_config.json"
        )
    return start


def _forbidden(settings: Any) -> tuple[tuple[int, ...], ...]:
    """Return the forbidden words; end tokens are not words, as in transformers."""
    eos = getattr(settings, "eos_token_id", None)
    ends = [[token] for token in (eos if isinstance(eos, list) else [eos])]
    words = getattr(settings, "bad_words_ids", None) or []
    kept = [word for word in words if word not in ends]
    suppressed = getattr(settings, "suppress_tokens", None) or []
    kept += [[token] for token in suppressed]
    return tuple(map(tuple, kept))


def _token(settings: Any, name: str, model: str) -> int | None:
    value = getattr(settings, name, None)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is not None and type(value) is not int:
        raise ModelError(
            f"cannot run {model}: {name} of its generation settings is {value!r}, and "
            "only one token is supported. Set it to one id, or to null"
        )
    return value
