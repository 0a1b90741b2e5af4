"""Models in the formats of other engines, written once and kept on disk: found again by what they hold.

Knows digests and folders; knows nothing about formats.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from foreword.disk import appearing, cache
from foreword.errors import InvalidRequest, ModelError

WRITERS = 1
"""To be raised when what is written for the same weights changes: nothing kept before is then found."""


@dataclass(frozen=True, slots=True)
class Source:
    """A Llama as transformers has it and what goes with it into other formats."""

    name: str
    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerBase

    @property
    def eos(self) -> tuple[int, ...]:
        """Ids that end a text."""
        settings = self.model.generation_config
        ids = settings.eos_token_id if settings is not None else self.model.config.eos_token_id
        return (ids,) if isinstance(ids, int) else tuple(ids or ())

    @property
    def spelling(self) -> dict[str, Any]:
        """The tokenizer, as in a tokenizer.json."""
        return json.loads(cast(Any, self.tokenizer).backend_tokenizer.to_str())

    def digest(self) -> str:
        """Of all that is written: weights, sizes and vocabulary; 64 hexadecimal digits."""
        told = self.model.config.to_dict()
        sizes = {name: value for name, value in told.items() if name not in ("_name_or_path", "transformers_version")}
        found = hashlib.sha256(json.dumps([sizes, self.eos], sort_keys=True, default=str).encode())
        found.update(json.dumps(self.spelling, sort_keys=True).encode())
        for name, weight in self.model.named_parameters():
            found.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
            found.update(weight.detach().contiguous().view(torch.uint8).numpy().data)
        return found.hexdigest()


def source(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Source:
    """Raises ModelError for what the writers do not know, which is all but plain Llamas with a fast tokenizer."""
    if not isinstance(model, LlamaForCausalLM):
        raise ModelError(f"only a Llama can be converted, and {name} is a {type(model).__name__}")
    config = model.config
    if config.attention_bias or config.mlp_bias or config.hidden_act != "silu":
        raise ModelError(f"only a Llama with silu and without biases can be converted, and {name} is another one")
    if cast(Any, config).rope_parameters["rope_type"] != "default":
        raise ModelError(f"only a Llama with unscaled positions can be converted; {name} scales them")
    if not tokenizer.is_fast:
        raise ModelError(f"only a fast tokenizer can be converted; {name} has none")
    return Source(name, model, tokenizer)


def converted(kind: str, what: Source, write: Callable[[Path], None], note: Callable[[str], None]) -> Path:
    """The folder that holds `what` in the format `kind`; `write` fills an empty one where there is none yet.

    A folder appears when it is complete, so a run that is killed leaves nothing half written to be found.
    """
    kept = folder() / f"{kind}-{WRITERS}-{what.digest()[:20]}"
    if kept.is_dir():
        return kept
    note(f"writing {what.name} for {kind} into {kept}, where it is found again the next time")
    try:
        with appearing(kept) as begun:
            write(begun)
    except InvalidRequest:
        if not kept.is_dir():  # or else another run was faster
            raise
    return kept


def folder() -> Path:
    """Where they are kept: $XDG_CACHE_HOME/foreword/peers, or ~/.cache/foreword/peers. All of it may be deleted."""
    return cache() / "peers"
