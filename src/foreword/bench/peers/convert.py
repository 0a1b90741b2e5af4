"""Cache on disk of models converted to the formats of other engines, keyed by a digest
of their content.
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

from foreword.errors import InvalidRequest, ModelError
from foreword.files import atomic_folder, cache

INT8, INT4 = "int8", "int4"
"""Forms of quantized weights, as in `foreword.LLM(weights=)`; each engine has its own
type of as many bits.
"""
WRITERS = 2
"""Version of the writers; increase it when their output for the same weights changes,
so that old files are ignored.
"""


@dataclass(frozen=True, slots=True)
class Source:
    """A transformers Llama and its tokenizer, to be converted to another format."""

    name: str
    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerBase
    form: str | None = None
    """Form in which engines hold the matrices, INT8 or INT4; None = their dtype."""
    file: Path | None = None
    """GGUF file of the same weights, for engines that read it."""

    @property
    def eos(self) -> tuple[int, ...]:
        """Ids that end an answer."""
        settings = self.model.generation_config
        ids = (
            settings.eos_token_id
            if settings is not None
            else self.model.config.eos_token_id
        )
        return (ids,) if isinstance(ids, int) else tuple(ids or ())

    @property
    def spelling(self) -> dict[str, Any]:
        """The tokenizer as the content of a tokenizer.json."""
        return json.loads(cast(Any, self.tokenizer).backend_tokenizer.to_str())

    def digest(self) -> str:
        """Return a digest of weights, sizes and vocabulary: 64 hexadecimal digits."""
        config = self.model.config.to_dict()
        sizes = {
            name: value
            for name, value in config.items()
            if name not in ("_name_or_path", "transformers_version")
        }
        digest = hashlib.sha256(
            json.dumps([sizes, self.eos], sort_keys=True, default=str).encode()
        )
        digest.update(json.dumps(self.spelling, sort_keys=True).encode())
        for name, weight in self.model.named_parameters():
            digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
            digest.update(weight.detach().contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()


def source(
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    form: str | None = None,
    file: Path | None = None,
) -> Source:
    """Return a source to convert.

    Raises ModelError unless it is a plain Llama with a fast tokenizer.
    """
    if not isinstance(model, LlamaForCausalLM):
        raise ModelError(
            f"cannot convert {name}: only a Llama is supported, and it is a "
            f"{type(model).__name__}"
        )
    config = model.config
    if config.attention_bias or config.mlp_bias or config.hidden_act != "silu":
        raise ModelError(
            f"cannot convert {name}: only a Llama with silu and without biases is "
            "supported"
        )
    if cast(Any, config).rope_parameters["rope_type"] != "default":
        raise ModelError(
            f"cannot convert {name}: only a Llama with unscaled positions is supported"
        )
    if not tokenizer.is_fast:
        raise ModelError(f"cannot convert {name}: it has no fast tokenizer")
    return Source(name, model, tokenizer, form, file)


def converted(
    kind: str, what: Source, write: Callable[[Path], None], note: Callable[[str], None]
) -> Path:
    """Return the folder that holds `what` in the format `kind`; if there is none,
    `write` fills an empty one.

    `kind` names the type of the weights too, if it is not their dtype. A folder appears
    only when it is complete, so a killed run leaves no partial one.
    """
    kept = folder() / f"{kind}-{WRITERS}-{what.digest()[:20]}"
    if kept.is_dir():
        return kept
    note(f"writing {what.name} for {kind} into {kept}, to be reused by later runs")
    try:
        with atomic_folder(kept) as begun:
            write(begun)
    except InvalidRequest:
        if not kept.is_dir():  # else another run wrote it first
            raise
    return kept


def folder() -> Path:
    """Return the cache: $XDG_CACHE_HOME/foreword/peers or ~/.cache/foreword/peers.

    It may be deleted at any time.
    """
    return cache() / "peers"
