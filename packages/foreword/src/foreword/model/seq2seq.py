"""Encoder-decoder targets: how their texts begin and end, and forbidden tokens.

A prompt is the source, which the encoder reads once. The text of a request is what the
decoder reads.
"""

from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from transformers import PreTrainedModel

from foreword.errors import InvalidRequest, ModelError
from foreword.model.architectures import is_seq2seq
from foreword.model.encoder import reads_sound
from foreword.model.loading.config import SPEECH
from foreword.sampling.suppressed import Suppressed
from foreword.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Seq2Seq:
    """The tokens that the generation settings of an encoder-decoder force or forbid."""

    start: tuple[int, ...]
    """Ids that the decoder reads before the answer: the start token, then a forced
    first token, if there is one.
    """
    end: int | None = None
    """Id of the last token of an answer of `max_tokens`; None = the model's."""
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
    ) -> "Seq2Seq | None":
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

    def applied(
        self,
        params: SamplingParams,
    ) -> SamplingParams:
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


def is_speech(model: PreTrainedModel) -> bool:
    """Return whether a model reads sound and is supported."""
    return reads_sound(model) and model.config.model_type == SPEECH


def check_decoder_only(
    seq2seq: Seq2Seq | None,
    model: str,
    action: str,
) -> None:
    """Raise InvalidRequest for an encoder-decoder, which cannot do `action`."""
    if seq2seq is not None:
        raise InvalidRequest(
            f"cannot {action}: {model} is an encoder-decoder. Use a decoder-only model"
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
    bad_words = [word for word in words if word not in ends]
    suppressed = getattr(settings, "suppress_tokens", None) or []
    bad_words += [[token] for token in suppressed]
    return tuple(map(tuple, bad_words))


def _token(
    settings: Any,
    name: str,
    model: str,
) -> int | None:
    value = getattr(settings, name, None)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is not None and type(value) is not int:
        raise ModelError(
            f"cannot run {model}: {name} of its generation settings is {value!r}, and "
            "only one token is supported. Set it to one id, or to null"
        )
    return value
