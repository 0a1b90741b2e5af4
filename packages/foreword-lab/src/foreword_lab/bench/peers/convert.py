"""The models of other engines: GGUF files as they are, other Llamas converted; and the
cache on disk of converted models, keyed by a digest of their content.
"""

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
from foreword.model.loading.config import in_few_bits
from foreword.model.loading.sizes import stamps

INT8, INT4 = "int8", "int4"
"""Forms of quantized weights, as in `foreword.LLM(weights=)`."""
FORMS = {INT8: "Q8_0", INT4: "Q4_0"}
"""Form -> type of every matrix for other engines, embedding and LM head included."""
FILE = "model.gguf"
SAMPLE = "def f(x):  return 12345 * x  # naïve, 日本語 🙂\n\nIt's 1,234.5"
"""Text that tokenizers split differently: spaces, digits, marks and bytes."""
WRITERS = 3
"""Version of the writers; increase it when their output for the same weights changes,
so that old files are ignored.
"""


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


def converted(
    kind: str, what: Source, write: Callable[[Path], None], note: Callable[[str], None]
) -> Path:
    """Return the folder that holds `what` in the format `kind`; if there is none,
    `write` fills an empty one.

    `kind` names the type of the weights too, if it is not their dtype. A folder appears
    only when it is complete, so a killed run leaves no partial one.
    """
    path = folder() / f"{kind}-{WRITERS}-{what.digest()[:20]}"
    if path.is_dir():
        return path
    note(f"writing {what.name} for {kind} into {path}, to be reused by later runs")
    try:
        with atomic_folder(path) as begun:
            write(begun)
    except InvalidRequest:
        if not path.is_dir():  # else another run wrote it first
            raise
    return path


def folder() -> Path:
    """Return the cache: `peers` of Foreword's; it may be deleted at any time."""
    return cache() / "peers"


def note_vocabulary(
    engine: str,
    what: Source,
    size: int,
    tokenize: Callable[[str], list[int]],
    note: Callable[[str], None],
) -> None:
    """Note where an engine has another number of tokens, or splits text otherwise."""
    rows = what.model.config.get_text_config().vocab_size
    if size != rows:
        note(f"{engine} has {size} tokens of {what.name}, Foreword {rows}")
    ids = what.tokenizer(SAMPLE, add_special_tokens=False)["input_ids"]
    if tokenize(SAMPLE) != ids:
        note(
            f"{engine} tokenizes text of {what.name} otherwise than Foreword; it is "
            "measured on the token ids of Foreword"
        )
