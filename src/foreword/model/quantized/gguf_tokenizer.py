"""Provides the tokenizer of a GGUF file, and corrections of the one that transformers
builds.
"""

from __future__ import annotations

import json
import warnings
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from foreword.errors import ModelError
from foreword.model.quantized.gguf_families import KINDS
from foreword.model.quantized.gguf_file import GgufFile

DIGITS = "smollm"
"""Name of a split that takes each digit apart, then splits as GPT-2 does."""
WHOLE = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken", "lfm2")
"""Names of the splits of Llama 3, Mistral and LFM2, whose words are looked up before
they are merged. Such a text begins with the token for it, if the file does not say
otherwise; both as in llama.cpp."""
SPACE = "\u2581"
"""A space, as SentencePiece writes it, and before each text."""
CONTROL, USER_DEFINED = 3, 4
"""Kinds of tokens that are found in text as they stand."""
GPT2 = ("default", "gpt-2", "gpt2", DIGITS)
"""Names of splits that `corrected` knows."""
KNOWN = (
    *GPT2,
    "qwen2",
    "qwen35",
    "deepseek-r1-qwen",
    "gpt-4o",
    "dbrx",
    "smaug-bpe",
    *WHOLE,
)
"""Names of the splits of byte-level vocabularies that are read; transformers takes
others for GPT-2's.
"""

SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CAPITAL, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = (
    rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| "
    rf"?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
)
QWEN35 = (
    rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| "
    rf"?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{SPACES}"
)
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITAL}*{SMALL}+{SHORT}?|[^\r\n\p{{L}}\p{{N}}]?{CAPITAL}+{SMALL}*{SHORT}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
)
SPLITS = {
    **dict.fromkeys(
        ("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "dbrx", "lfm2"), LLAMA3
    ),
    "qwen35": QWEN35,
    "gpt-4o": GPT4O,
}
"""Regular expressions of splits, as in the tokenizer.json of the models; others are
read as GPT-2's.
"""


def byte_level(file: GgufFile) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer of a file of these families, before `corrected`; None for
    other architectures.

    Raises ModelError for one that is not byte-level BPE.
    """
    if file.architecture not in KINDS:
        return None
    if (kind := file.field("tokenizer.ggml.model")) != "gpt2":
        raise ModelError(
            f"cannot load a tokenizer from {file.source}: its kind {kind!r} is not "
            "supported with this architecture. Give tokenizer=..., the folder or hub "
            "id of the original model"
        )
    tokens = file.field("tokenizer.ggml.tokens")
    split = SPLITS.get(file.field("tokenizer.ggml.pre"))
    merges = [tuple(pair.split(" ", 1)) for pair in file.field("tokenizer.ggml.merges")]
    backend: Any = Tokenizer(
        models.BPE({token: place for place, token in enumerate(tokens)}, merges)
    )
    pieces = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)]
    if split is not None:
        pieces = [pre_tokenizers.Split(Regex(split), "isolated"), *pieces]
    backend.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    backend.decoder = decoders.ByteLevel()
    named = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    places = {
        ours: file.field(f"tokenizer.ggml.{theirs}_token_id")
        for ours, theirs in named.items()
    }
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=file.field("tokenizer.chat_template"),
        add_bos_token=bool(file.field("tokenizer.ggml.add_bos_token")),
        **{
            f"{name}_token": tokens[place]
            for name, place in places.items()
            if place is not None
        },
    )


def check_tokens(file: GgufFile) -> GgufFile:
    """Return a file that holds a tokenizer. Raises ModelError where it holds none."""
    if "tokenizer.ggml.tokens" not in file.fields:
        raise ModelError(
            f"cannot load a tokenizer from {file.source}: the file holds none. Give "
            "tokenizer=..., the folder or hub id of the original model, or "
            "tokenizer=False for token ids alone"
        )
    return file


def corrected(
    tokenizer: PreTrainedTokenizerBase, file: GgufFile
) -> PreTrainedTokenizerBase:
    """Return a tokenizer that splits text as the file says, and has the file's tokens
    only. Changes it in place.
    """
    fast: Any = tokenizer
    if (
        file.field("tokenizer.ggml.model") == "llama"
        and file.field("tokenizer.ggml.add_space_prefix") is not False
    ):
        fast.backend_tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        )
        fast.backend_tokenizer.pre_tokenizer = None
    if file.field("tokenizer.ggml.model") != "gpt2":
        return tokenizer
    content = json.loads(fast.backend_tokenizer.to_str())
    split = file.field("tokenizer.ggml.pre") or "default"
    _restore(
        content,
        file.field("tokenizer.ggml.tokens"),
        file.field("tokenizer.ggml.token_type") or [],
    )
    content["model"]["ignore_merges"] = split in WHOLE
    fast._tokenizer = Tokenizer.from_str(json.dumps(content))
    if split == DIGITS:
        fast.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    if (
        split in WHOLE
        and file.field("tokenizer.ggml.add_bos_token") is None
        and fast.bos_token is not None
    ):
        fast.add_bos_token = True
    if fast.add_bos_token or fast.add_eos_token:
        fast.update_post_processor()  # ids may have changed
    if split not in ((*GPT2, *SPLITS) if file.architecture in KINDS else KNOWN):
        warnings.warn(
            f"{file.source} splits text by {split!r}, which is read as GPT-2's split: "
            "prompts may have other tokens than the model was trained on. Give "
            "tokenizer=..., the folder or hub id of the original model",
            stacklevel=4,
        )
    return tokenizer


def _restore(content: dict[str, Any], tokens: list[str], kinds: list[int]) -> None:
    """Give the special tokens of a byte-level vocabulary the ids of the file; drop
    tokens that the file does not have.

    Transformers spells special tokens in bytes like all others, so those beyond ASCII
    are not found in text, and it adds them again, as well as GPT-2's own, behind the
    vocabulary.
    """
    special = {
        tokens[place]: place
        for place, kind in enumerate(kinds)
        if kind in (CONTROL, USER_DEFINED)
    }
    added = {
        token["content"]: token
        for token in content["added_tokens"]
        if token["id"] < len(tokens)
    }
    vocab = {place: token for token, place in content["model"]["vocab"].items()}
    for token, place in special.items():
        plain = dict(single_word=False, lstrip=False, rstrip=False, normalized=False)
        added[token] = {
            "id": place,
            "content": token,
            "special": kinds[place] == CONTROL,
            **plain,
        }
        vocab[place] = token
    content["added_tokens"] = sorted(added.values(), key=lambda token: token["id"])
    content["model"]["vocab"] = {token: place for place, token in vocab.items()}
