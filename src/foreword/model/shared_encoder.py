"""Provides draft models that use the target's encoder, so that a source of sound is encoded once for both.

As distil-whisper: a decoder that was trained on the states of the target's own encoder.
"""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import TypeGuard

import torch
from torch import nn
from transformers import PreTrainedModel

from foreword.errors import InvalidRequest
from foreword.model.loading.config import read_config
from foreword.model.loading.load import load_weights
from foreword.model.model import Model
from foreword.model.seq2seq import is_seq2seq, reads_sound

ENCODER = ("d_model", "num_mel_bins", "max_source_positions", "activation_function", "scale_embedding")
"""Config names of what an encoder computes, beside those that begin with "encoder_"."""


def load_draft(source: str | Path | PreTrainedModel, target: Model) -> Model:
    """Return a draft model for a target: from a folder, a hub id, or memory, where it may be changed.

    A decoder alone gets the encoder of a target that reads sound.
    """
    sound = target.seq2seq is not None and target.seq2seq.sound
    if not isinstance(source, PreTrainedModel):
        trusted = target.trust_remote_code
        config = read_config(source, trust_remote_code=trusted, seq2seq=True)
        if is_seq2seq(config) or not sound:
            model = Model.load(source, dtype=target.dtype, device=str(target.device), trust_remote_code=trusted)
            share_encoder(model.hf, target.hf)
            return model
        source = load_weights(source, config, target.dtype, trust_remote_code=trusted)
        nn.Module.to(source, target.device)
    if sound and is_decoder(source):
        return Model(with_encoder(source, target.hf))
    share_encoder(source, target.hf)
    return Model(source)


def is_decoder(model: object) -> TypeGuard[PreTrainedModel]:
    """Return whether a model is the decoder of an encoder-decoder alone: it takes states that it does not compute."""
    if not isinstance(model, PreTrainedModel):
        return False
    return not is_seq2seq(model.config) and "encoder_outputs" in inspect.signature(model.forward).parameters


def with_encoder(decoder: PreTrainedModel, target: PreTrainedModel) -> PreTrainedModel:
    """Return the encoder-decoder of a decoder and the target's encoder. Raises InvalidRequest where they do not fit."""
    kind, width = type(target).__name__, getattr(decoder.config, "d_model", None)
    if not (reads_sound(target) and decoder.config.model_type == target.config.model_type):
        raise InvalidRequest(
            f"cannot draft with {type(decoder).__name__}: it is a decoder without an encoder, and cannot use that of "
            f"{kind}. Give a whole encoder-decoder"
        )
    if width != target.config.d_model:
        raise InvalidRequest(
            f"cannot draft with {type(decoder).__name__}: it reads states of width {width}, and the encoder of {kind} "
            f"gives {target.config.d_model}. Give one that was made for this target"
        )
    config = copy.deepcopy(decoder.config)
    config.is_encoder_decoder = True
    for name, value in _encoder_config(target).items():
        setattr(config, name, value)
    with torch.device("meta"):
        whole = type(target)(config)
    whole.model.decoder = decoder.get_decoder()
    whole.set_output_embeddings(decoder.get_output_embeddings())
    whole.generation_config = copy.deepcopy(target.generation_config)
    _replace(whole, whole.get_encoder(), target.get_encoder())
    return whole


def source_kind(model: Model) -> str:
    """Return what a draft model must be like to read what this model reads, in words."""
    if model.seq2seq is None:
        return "a decoder-only model"
    return (
        f"a model of speech that reads {model.hf.config.num_mel_bins} mel bins"
        if model.seq2seq.sound
        else "an encoder-decoder"
    )


def share_encoder(draft: PreTrainedModel, target: PreTrainedModel) -> bool:
    """Let a draft model use the target's encoder if both read sound and are equal in every weight; return whether."""
    if not (reads_sound(draft) and reads_sound(target)):
        return False
    ours, theirs = draft.get_encoder(), target.get_encoder()
    if ours is theirs:
        return True
    if _encoder_config(draft) != _encoder_config(target) or not _same(ours, theirs):
        return False
    _replace(draft, ours, theirs)
    return True


def _encoder_config(model: PreTrainedModel) -> dict[str, object]:
    values = model.config.to_dict()
    return {name: value for name, value in values.items() if name in ENCODER or name.startswith("encoder_")}


def _same(ours: nn.Module, theirs: nn.Module) -> bool:
    first, second = ours.state_dict(), theirs.state_dict()
    return first.keys() == second.keys() and all(
        first[name].shape == second[name].shape
        and first[name].dtype == second[name].dtype
        and torch.equal(first[name].to(second[name].device), second[name])
        for name in first
    )


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    for parent in model.modules():
        for name, child in parent.named_children():
            if child is old:
                setattr(parent, name, new)
