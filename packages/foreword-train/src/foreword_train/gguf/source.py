"""A transformers model with its tokenizer, as the writers of other engines read it."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from foreword.errors import ModelError
from foreword.model.loading.config import in_few_bits
from foreword.model.loading.sizes import stamps


@dataclass(frozen=True, slots=True)
class Source:
    """A transformers model and its tokenizer, for other engines."""

    name: str
    model: PreTrainedModel
    """A Llama unless there is a file; then its weights are not read."""
    tokenizer: PreTrainedTokenizerBase
    form: str | None = None
    """Form in which engines hold the matrices, INT8 or INT4; None = their dtype."""
    file: Path | None = None
    """GGUF file of the model, which engines read themselves."""

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

    @property
    def context(self) -> int:
        """Tokens. Context length of the model."""
        return self.model.config.get_text_config().max_position_embeddings

    @property
    def few_bits(self) -> bool:
        """Whether matrices are quantized."""
        if self.file is None:
            return self.form is not None
        return in_few_bits(self.file, self.model.config)

    def digest(self) -> str:
        """Return a digest of weights, sizes and vocabulary, or of the file's name, size
        and time of change: 64 hexadecimal digits.
        """
        if self.file is not None:
            return hashlib.sha256(repr(stamps(self.file)).encode()).hexdigest()
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
    """Return a source that engines read from `file`, or one to convert.

    Raises ModelError unless there is a file, or it is a plain Llama with a fast
    tokenizer.
    """
    if file is not None:
        return Source(name, model, tokenizer, file=file)
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
    return Source(name, model, tokenizer, form)
