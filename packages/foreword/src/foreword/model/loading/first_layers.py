"""Probes a GGUF file on its first layers; the others need not be held in 16 bits."""

from contextlib import suppress
from copy import deepcopy
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from foreword.errors import ModelError
from foreword.model.executors.registry import Capability
from foreword.model.layers import layer_count, layers_of
from foreword.model.loading import hub, sentence
from foreword.model.loading.causal import check_causal
from foreword.model.loading.config import in_few_bits
from foreword.model.loading.load import empty_model, load_weights
from foreword.model.probe.excerpt import enough, shorten
from foreword.model.probe.probe import choose

LEAST = 4
"""Layers: the states of real models grow a thousandfold within the first few."""


def capability(
    source: str | Path,
    config: PreTrainedConfig,
    dtype: torch.dtype | str,
    only: str | None,
) -> Capability | None:
    """Return what the probe finds on the first layers of a quantized GGUF file, with
    every kind of layer among them.

    Returns None for another checkpoint, or one that has no other layers. `only` is as
    for `choose`. Raises ModelError where the layers cannot be loaded, or no backend
    runs them.
    """
    if hub.gguf(source) is None or not in_few_bits(source, config):
        return None
    short = _shortened(config)
    if short is None:
        return None
    hf = load_weights(source, short, dtype)
    check_causal(hf, str(source))
    text = sentence.tokens(source, hf, trusted=False)
    return choose(hf, [], owned=True, only=only, text=text)[1]


def _shortened(config: PreTrainedConfig) -> PreTrainedConfig | None:
    """Return a config of the first layers; None where they are all, or not known."""
    with suppress(ModelError):
        count = layer_count(config)
        layers = layers_of(empty_model(deepcopy(config), trust_remote_code=False))
        needed = max(LEAST, enough(layers, config.get_text_config()))
        if needed < count:
            short = deepcopy(config)
            shorten(short.get_text_config(), count, needed)
            return short
    return None
