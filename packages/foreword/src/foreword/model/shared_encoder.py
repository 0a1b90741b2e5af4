"""Draft models of encoder-decoders that share the target's encoder, which then runs
once for both.

Such a draft model is an encoder-decoder whose encoder equals the target's, or a decoder
alone that was trained on the states of that encoder (as distil-whisper; Gandhi, von
Platen, Rush 2023, arXiv 2311.00430).
"""

import copy
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn
from transformers import PreTrainedModel

from foreword.errors import InvalidRequest
from foreword.model.architectures import is_seq2seq
from foreword.model.cost import PROBE_ID
from foreword.model.encoder import EncoderMemory
from foreword.model.loading.config import read_config
from foreword.model.loading.given import (
    Given,
    load_alone,
)
from foreword.model.loading.in_memory import twin
from foreword.model.loading.load import load_weights
from foreword.model.model import Model
from foreword.types import Encoded, Features, Source

_ENCODER = ("num_mel_bins", "max_source_positions")
"""Config names of an encoder's inputs, beside names that begin with "encoder_"."""


def load_sharing(source: Given, target: Model) -> Model:
    """Return a draft model for an encoder-decoder, as `load_draft` does.

    If its encoder equals the target's, it shares that one; a decoder alone becomes an
    encoder-decoder with it. Raises InvalidRequest for a decoder that does not fit the
    target's encoder.
    """
    model = _completed(source, target)
    if model is None:
        model = load_alone(source, target)
    check_draft(model, target)
    if share_encoder(model, target) and model is not source:
        model.hf.set_encoder(nn.Identity())  # its own, which is not needed
    return model


def _completed(source: Given, target: Model) -> Model | None:
    """Return the draft model of a decoder alone; None for another source."""
    if is_decoder(source, target.hf):
        return Model(with_encoder(twin(source), target.hf))
    if not isinstance(source, str | Path):
        return None
    trusted = target.trust_remote_code
    config = read_config(source, trust_remote_code=trusted, seq2seq=True)
    if not _is_decoder(config, target.hf):
        return None
    hf = load_weights(source, config, target.dtype, trust_remote_code=trusted)
    nn.Module.to(hf, target.device)
    model = Model(with_encoder(hf, target.hf), str(source))
    model.quantize()
    return model


def check_draft(draft: Model, target: Model) -> None:
    """Raise InvalidRequest for a draft model that cannot read what the target reads."""
    if draft.seq2seq is None or _reads(draft) == _reads(target):
        return
    needed = {
        None: "a decoder-only model",
        0: "an encoder-decoder of text",
    }.get(_reads(target), f"a model of speech that reads {_reads(target)} mel bins")
    raise InvalidRequest(
        f"cannot draft with {draft.name}: {target.name} needs {needed} as draft model. "
        "Give one"
    )


def is_decoder(model: object, target: PreTrainedModel) -> TypeGuard[PreTrainedModel]:
    """Return whether a model is a decoder alone, of the target's encoder-decoder."""
    return isinstance(model, PreTrainedModel) and _is_decoder(model.config, target)


def with_encoder(decoder: PreTrainedModel, target: PreTrainedModel) -> PreTrainedModel:
    """Return the encoder-decoder of a decoder, which is used as it is, and a twin of
    the target's encoder.

    Raises InvalidRequest where they do not fit.
    """
    name = type(decoder).__name__
    width = decoder.config.hidden_size
    needed = target.config.hidden_size
    if width != needed:
        raise InvalidRequest(
            f"cannot draft with {name}: this decoder reads states of width {width}, "
            f"and the encoder of {type(target).__name__} gives {needed}. Give a "
            "decoder that was trained with this encoder, or a whole encoder-decoder"
        )
    if decoder.device != target.device:
        raise InvalidRequest(
            f"cannot draft with {name} on {decoder.device}: it reads the states of "
            f"the target's encoder, which is on {target.device}. Move it there"
        )
    config, theirs = copy.deepcopy(decoder.config), target.config.to_dict()
    for key, value in theirs.items():
        if key.startswith("encoder_") or key in _ENCODER:
            config.update({key: value})
    config.is_encoder_decoder = True
    with torch.device("meta"):
        whole = type(target)(config)
    whole.set_input_embeddings(decoder.get_input_embeddings())
    encoder = twin(target.get_encoder())
    # not that of a backend
    encoder.set_attn_implementation(decoder.config._attn_implementation or "eager")
    whole.set_encoder(encoder)
    whole.set_decoder(decoder.get_decoder())
    whole.set_output_embeddings(decoder.get_output_embeddings())
    # a bias of the logits, which a decoder alone lacks
    for key, buffer in list(whole.named_buffers(recurse=False)):
        setattr(whole, key, torch.zeros_like(buffer, device=target.device))
    whole.generation_config = copy.deepcopy(target.generation_config)
    return whole


def share_encoder(draft: Model, target: Model) -> bool:
    """Give the draft model the target's encoder if both compute the same; return
    whether its own is not needed.
    """
    alike = (draft.device, draft.dtype) == (
        target.device,
        target.dtype,
    ) and draft.vocab <= target.vocab
    if draft is target or draft.seq2seq is None or target.seq2seq is None or not alike:
        return False
    ours = draft.backend.memory(EncoderMemory)
    theirs = target.backend.memory(EncoderMemory)
    assert ours is not None
    assert theirs is not None
    if ours.encoder is not theirs.encoder:
        sources = _probes(ours.probe_source, theirs.probe_source)
        for model, probe in zip((draft, target), sources, strict=True):
            model.open(PROBE_ID, 1)
            model.give(PROBE_ID, probe)
            model.close(PROBE_ID)
        states = [
            probe.encoded(one.encoder)[0]
            for probe, one in zip(sources, (ours, theirs), strict=True)
        ]
        if not torch.equal(*states):
            return False
        ours.encoder = theirs.encoder
    return True


def _probes(ours: Any, theirs: Any) -> tuple[Encoded, Encoded]:
    """Return the sources under which two encoders are compared: one, or equal sounds
    that each has read already.
    """
    if isinstance(ours, Features):
        return ours, theirs
    probe = Source(ours)
    return probe, probe


def _reads(model: Model) -> int | None:
    """Return the mel bins that a model reads, 0 for text; None for a decoder-only."""
    if model.seq2seq is None:
        return None
    return model.hf.config.num_mel_bins if model.seq2seq.sound else 0


def _is_decoder(config: Any, target: PreTrainedModel) -> bool:
    return (
        is_seq2seq(target.config)
        and config.model_type == target.config.model_type
        and not is_seq2seq(config)
    )
