"""Tokens of the sentence on which the probe compares scores."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from transformers import PreTrainedModel

from foreword.errors import ForewordError
from foreword.model.probe.excerpt import TINY
from foreword.model.probe.trial import SENTENCE
from foreword.model.tokenizer import load_tokenizer


def tokens(source: str | Path, hf: PreTrainedModel, *, trusted: bool) -> Sequence[int]:
    """Return the sentence as the checkpoint's tokenizer begins and splits it.

    Nothing without a tokenizer, or for a model so small that reading its tokenizer
    would take longer than the probe.
    """
    size = sum(weight.numel() for weight in hf.parameters())
    if size <= TINY:
        return ()
    with suppress(ForewordError):
        tokenizer = load_tokenizer(source, trust_remote_code=trusted)
        ids = tokenizer(SENTENCE).input_ids
        if max(ids, default=0) < hf.config.get_text_config().vocab_size:
            return ids
    return ()
