"""Tokenizer of a GGUF file, built for `tokenizers` and kept in the cache: a large
vocabulary takes a second to build.
"""

import json
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from foreword.errors import ModelError
from foreword.files import atomic_file, cache
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
"""Names of GPT-2's split."""
QWEN2S = ("qwen2", "deepseek-r1-qwen")
SENTENCEPIECE = ("llama", "gemma2", "gemma3", "phi3")
"""Architectures whose files may hold a vocabulary of SentencePiece."""
FORMAT = 1
"""Version of what is kept in the cache; raise it when what is built here changes."""
NAMED = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
"""The special tokens of transformers, and the names that files have for them."""
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CAPITAL, SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = (
    rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| "
    rf"?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
)
QWEN2 = (
    rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| "
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
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITAL}*{SMALL}+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{CAPITAL}+{SMALL}*"
    rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
)
SPLITS = {
    **dict.fromkeys((*WHOLE, "smaug-bpe", "dbrx"), LLAMA3),
    **dict.fromkeys(QWEN2S, QWEN2),
    "tekken": TEKKEN,
    "qwen35": QWEN35,
    "gpt-4o": GPT4O,
}
"""Regular expressions of splits, as in the tokenizer.json of the models; others are
read as GPT-2's.
"""


def gguf_tokenizer(file: GgufFile) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a file, which splits text as the file says.

    Raises ModelError where the file holds none, or one of a kind that is not supported.
    """
    kind, split = file.field("tokenizer.ggml.model"), _split(file)
    byte_level = kind == "gpt2"
    needed = {"tokenizer.ggml.tokens"}
    if byte_level:
        needed.add("tokenizer.ggml.merges")
    if not needed <= file.headers[0].fields.keys():
        raise ModelError(
            f"cannot load a tokenizer from {file.source}: the file holds none. Give "
            "tokenizer=..., the folder or hub id of the original model, or "
            "tokenizer=False for token ids alone"
        )
    if not byte_level and file.architecture not in SENTENCEPIECE:
        raise ModelError(
            f"cannot load a tokenizer from {file.source}: its kind {kind!r} is not "
            "supported with this architecture. Give tokenizer=..., the folder or hub "
            "id of the original model"
        )
    if byte_level and split not in (*GPT2, *SPLITS):
        warnings.warn(
            f"{file.source} splits text by {split!r}, which is read as GPT-2's split: "
            "prompts may have other tokens than the model was trained on. Give "
            "tokenizer=..., the folder or hub id of the original model",
            stacklevel=4,
        )
    begins = file.field("tokenizer.ggml.add_bos_token")
    bos = file.field("tokenizer.ggml.bos_token_id")
    if begins is None:
        begins = bos is not None and (split in WHOLE if byte_level else True)
    tokens, named = file.field("tokenizer.ggml.tokens"), {}
    for name, theirs in NAMED.items():
        if (id_ := file.field(f"tokenizer.ggml.{theirs}_token_id")) is not None:
            named[f"{name}_token"] = tokens[id_]
    tokenizer: Any = _made(
        file,
        _byte_level if byte_level else _sentencepiece,
        chat_template=file.field("tokenizer.chat_template"),
        add_bos_token=begins,
        add_eos_token=bool(file.field("tokenizer.ggml.add_eos_token")),
        **named,
    )
    if tokenizer.add_bos_token or tokenizer.add_eos_token:
        tokenizer.update_post_processor()
    return tokenizer


def _split(file: GgufFile) -> str:
    return file.field("tokenizer.ggml.pre") or "default"


def _made(
    file: GgufFile, build: Callable[[GgufFile], str], **settings: Any
) -> PreTrainedTokenizerFast:
    """Return the tokenizer that `build` describes in JSON, which is kept in the cache
    by the header of the file; a damaged one is made anew.
    """
    path = None
    with suppress(OSError):
        path = cache() / "tokenizers" / f"{file.digest()}-{FORMAT}.json"
    if path is not None and path.is_file():
        with suppress(Exception):
            return PreTrainedTokenizerFast(tokenizer_file=str(path), **settings)
    content = build(file)
    if path is not None:
        with suppress(OSError), atomic_file(path) as partial:
            partial.write_text(content, "utf-8")
    backend = Tokenizer.from_str(content)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **settings)


def _byte_level(file: GgufFile) -> str:
    """Return a byte-level tokenizer in JSON, with the ids of the file."""
    tokens = file.field("tokenizer.ggml.tokens")
    split = SPLITS.get(_split(file))
    backend: Any = Tokenizer(models.BPE())
    pieces: list[Any] = [
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    ]
    if split is not None:
        pieces.insert(0, pre_tokenizers.Split(Regex(split), "isolated"))
    if _split(file) == DIGITS:
        pieces.insert(0, pre_tokenizers.Digits(individual_digits=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(pieces)
    backend.decoder = decoders.ByteLevel()
    if split in (QWEN2, QWEN35):
        backend.normalizer = normalizers.NFC()
    content = json.loads(backend.to_str())
    content["added_tokens"] = [
        {
            "id": id_,
            "content": tokens[id_],
            "special": kind == CONTROL,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for id_, kind in enumerate(file.field("tokenizer.ggml.token_type") or ())
        if kind in (CONTROL, USER_DEFINED)
    ]
    content["model"] |= {
        "vocab": {token: id_ for id_, token in enumerate(tokens)},
        "merges": file.field("tokenizer.ggml.merges"),
        "ignore_merges": _split(file) in WHOLE,
    }
    return json.dumps(content, ensure_ascii=False)


def _sentencepiece(file: GgufFile) -> str:
    """Return a tokenizer of SentencePiece's in JSON, as transformers reads it."""
    path = file.paths[0]
    fast: Any = AutoTokenizer.from_pretrained(
        path.parent, gguf_file=path.name, local_files_only=True, trust_remote_code=False
    )
    if file.field("tokenizer.ggml.add_space_prefix") is not False:
        fast.backend_tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        )
        fast.backend_tokenizer.pre_tokenizer = None
    return fast.backend_tokenizer.to_str()
