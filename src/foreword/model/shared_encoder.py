"""Provides draft models of encoder-decoders that share the target's encoder, which then runs once for both.

Such a draft model is an encoder-decoder whose encoder equals the target's, or a decoder alone that was trained on the
states of that encoder (as distil-whisper; Gandhi, von Platen, Rush 2023, arXiv 2311.00430).
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import cast

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from foreword.errors import InvalidRequest
from foreword.model.backend import Encodes
from foreword.model.loading.config import read_config
from foreword.model.loading.given import twin
from foreword.model.loading.load import load_weights
from foreword.model.model import Model
from foreword.model.seq2seq import is_seq2seq
from foreword.types import Source

_PROBE_ID = -1
"""Sequence id under which encoders are compared, which is no request."""


def load_draft(source: str | Path | PreTrainedModel | Model, target: Model) -> Model:
    """Return a draft model for a target; a folder or hub id is loaded in the target's dtype, on its device.

    If its encoder equals the target's, it shares that one. A decoder alone becomes an encoder-decoder with it; one in
    memory is changed. Raises InvalidRequest for a decoder that does not fit the target's encoder.
    """
    if isinstance(source, Model):
        model = source
    elif isinstance(source, PreTrainedModel):
        model = Model(_whole(source, target))
    else:
        trusted = target.trust_remote_code
        config = read_config(source, trust_remote_code=trusted, seq2seq=True)
        if not _is_decoder(config, target):
            model = Model.load(source, dtype=target.dtype, device=str(target.device), trust_remote_code=trusted)
        else:
            hf = load_weights(source, config, target.dtype, trust_remote_code=trusted)
            nn.Module.to(hf, target.device)
            model = Model(_whole(hf, target), str(source))
    if _share(model, target) and model is not source:
        model.hf.set_encoder(nn.Identity())  # its own, which is not needed
    return model


def _is_decoder(config: PreTrainedConfig, target: Model) -> bool:
    """Return whether a config is of the decoder of the target's kind of encoder-decoder."""
    kind = target.hf.config.model_type
    return target.seq2seq is not None and config.model_type == kind and not is_seq2seq(config)


def _whole(model: PreTrainedModel, target: Model) -> PreTrainedModel:
    """Return the encoder-decoder of a decoder and a twin of the target's encoder; any other model as it is."""
    if not _is_decoder(model.config, target):
        return model
    name, width, needed = type(model).__name__, model.config.hidden_size, target.hf.config.hidden_size
    if width != needed:
        raise InvalidRequest(
            f"cannot draft with {name}: this decoder reads states of width {width}, and the encoder of {target.name} "
            f"gives {needed}. Give a decoder that was trained with this encoder, or a whole encoder-decoder"
        )
    config, theirs = copy.deepcopy(model.config), target.hf.config.to_dict()
    config.update({key: value for key, value in theirs.items() if key.startswith("encoder_")})
    config.is_encoder_decoder = True
    with torch.device("meta"):
        whole = type(target.hf)(config)
    whole.set_input_embeddings(model.get_input_embeddings())
    whole.set_encoder(twin(target.hf.get_encoder()))
    whole.set_decoder(model.get_decoder())
    whole.set_output_embeddings(model.get_output_embeddings())
    for key, buffer in list(whole.named_buffers(recurse=False)):  # a bias of the logits, which a decoder alone lacks
        setattr(whole, key, torch.zeros_like(buffer, device=target.device))
    whole.generation_config = copy.deepcopy(target.hf.generation_config)
    return whole


def _share(draft: Model, target: Model) -> bool:
    """Give the draft model the target's encoder if both compute the same; return whether its own is not needed."""
    alike = (draft.device, draft.dtype) == (target.device, target.dtype) and draft.vocab <= target.vocab
    if draft is target or draft.seq2seq is None or target.seq2seq is None or not alike:
        return False
    ours, theirs = cast("Encodes", draft.backend), cast("Encodes", target.backend)
    if ours.encoder is not theirs.encoder:
        probe = Source(ours.probe_source)
        for model in (draft, target):
            model.open(_PROBE_ID, 1)
            model.encode(_PROBE_ID, probe)
            model.close(_PROBE_ID)
        if not torch.equal(*(probe.encoded(backend.encoder)[0] for backend in (ours, theirs))):
            return False
        ours.encoder = theirs.encoder
    return True
