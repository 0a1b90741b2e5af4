"""Writer of tensors and a tokenizer as a GGUF file; weights keep their dtype, or are
rounded to few bits.

Names follow the specification of GGUF: ggml-org/ggml, docs/gguf.md.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from foreword.errors import ModelError
from foreword.model.architectures import head_dim
from foreword.native.openmp import in_parallel
from foreword_train.gguf.source import Source

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
KINDS = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
KINDS |= {torch.int64: "I64"}
"""Types that hold numbers as torch does, by dtype."""
DTYPES = {kind: dtype for dtype, kind in KINDS.items()}
BLOCK = 32
"""Weights of a row that share a scale in every quantized type."""
NORMAL, CONTROL = 1, 3
"""Token types, as numbered by GGUF."""
DIGITS_APART = "smollm"
"""Llama.cpp's name of a pre-tokenizer that splits off digits, then as GPT-2 does."""
GPT2 = "gpt-2"
UNUSED = "[PAD{}]"
"""Name of an id that the tokenizer lacks, as in files of llama.cpp's converter."""


def write(
    source: Source,
    path: Path,
    form: str | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Write model and tokenizer into one file, matrices in a form ("Q4_0", "F16"); None
    keeps the dtype. Return the types of the tensors.

    One matrix after another is rounded and written; `note` gets lines that count.
    Raises ModelError when the tokenizer is not byte-level BPE, or the package gguf is
    missing.
    """
    model = cast(LlamaForCausalLM, source.model)
    ends = {"tokenizer.ggml.eos_token_id": source.eos[0]} if source.eos else {}
    content = model.config, source.tokenizer, lambda: tensors(model)
    form = form or KINDS[model.dtype]
    return write_file(path, "llama", *content, form=form, fields=ends, note=note)


def write_file(
    path: Path,
    architecture: str,
    config: Any,
    tokenizer: PreTrainedTokenizerBase,
    tensors: Callable[[], Iterable[tuple[str, Tensor]]],
    *,
    form: str,
    fields: Mapping[str, Any],
    note: Callable[[str], None] = lambda _: None,
) -> list[str]:
    """Write the tensors of Llama-like layers, as `write` does, and these fields."""
    gguf = package()
    file = gguf.GGUFWriter(path, architecture)
    _describe(file, config)
    _spell(file, tokenizer, config.vocab_size)
    adders = {bool: file.add_bool, int: file.add_uint32, list: file.add_array}
    for name, value in fields.items():
        adders[type(value)](name, value)
    prefix = "ALL" if form == "F32" else "MOSTLY"
    file.add_file_type(gguf.LlamaFileType[f"{prefix}_{form}"])
    kinds: dict[str, str] = {}
    for name, weight in tensors():
        kinds[name] = _kind(weight, form)
        type_ = gguf.GGMLQuantizationType[kinds[name]]
        each, size = gguf.GGML_QUANT_SIZES[type_]
        bytes_ = weight.numel() // each * size
        file.add_tensor_info(name, weight.shape, np.float32, bytes_, type_)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_ti_data_to_file()

    def data(item: tuple[str, Tensor]) -> Tensor:
        return _data(item[1], kinds[item[0]])

    for done, held in enumerate(in_parallel(data, tensors()), 1):
        file.write_tensor_data(held.numpy())
        if done % len(NAMES) == 0 or done == len(kinds):
            note(f"{done} of {len(kinds)}: tensors written")
    file.close()
    return list(kinds.values())


def package() -> Any:
    """Return the package gguf, or raise ModelError."""
    try:
        return import_module("gguf")
    except ImportError as error:
        raise ModelError(
            "cannot write GGUF files without the package gguf. Run: pip install "
            "'foreword[gguf]'"
        ) from error


def _kind(weight: Tensor, form: str) -> str:
    """Return the type of a tensor; vectors, and rows that do not fit into the blocks of
    the form, keep their dtype.
    """
    is_matrix = weight.dim() > 1
    fits = form in DTYPES or weight.shape[-1] % BLOCK == 0
    return form if is_matrix and fits else KINDS[weight.dtype]


def _data(weight: Tensor, kind: str) -> Tensor:
    """Return a tensor as a file holds it, in bytes."""
    if kind in DTYPES:
        return weight.to(DTYPES[kind]).contiguous().view(torch.uint8)
    gguf = package()
    type_ = gguf.GGMLQuantizationType[kind]
    data = gguf.quants.quantize(weight.float().numpy(), type_)
    return torch.from_numpy(data)


def tensors(model: LlamaForCausalLM) -> Iterator[tuple[str, Tensor]]:
    """Yield each weight's GGUF name, and the weight as GGUF has it, vectors float32."""
    config = model.config
    yield "token_embd.weight", model.model.embed_tokens.weight.detach()
    yield "output_norm.weight", model.model.norm.weight.detach().float()
    if not config.tie_word_embeddings:
        yield "output.weight", model.lm_head.weight.detach()
    shared = config.num_key_value_heads or config.num_attention_heads
    heads = {"attn_q": config.num_attention_heads, "attn_k": shared}
    for number, layer in enumerate(model.model.layers):
        for theirs, ours in NAMES.items():
            weight = layer.get_submodule(theirs).get_parameter("weight").detach()
            if ours in heads:
                weight = interleaved(weight, heads[ours])
            name = f"blk.{number}.{ours}.weight"
            yield name, weight.float() if weight.dim() == 1 else weight


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """Return the rows (head * size, in) of a projection in the order in which llama.cpp
    rotates them.

    Llama.cpp rotates the pair 2i and 2i + 1 of a head by the angle of transformers'
    pair i and size / 2 + i.
    """
    rows, columns = weight.shape
    halves = weight.view(heads, 2, rows // heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns)


def _describe(file: Any, config: Any) -> None:
    size = head_dim(config)
    file.add_context_length(config.max_position_embeddings)
    file.add_embedding_length(config.hidden_size)
    file.add_block_count(config.num_hidden_layers)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(config.num_attention_heads)
    file.add_head_count_kv(config.num_key_value_heads)
    file.add_key_length(size)
    file.add_value_length(size)
    file.add_rope_dimension_count(size)
    file.add_rope_freq_base(config.rope_parameters["rope_theta"])
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_vocab_size(config.vocab_size)


def _spell(file: Any, tokenizer: Any, vocab: int) -> None:
    """Write the vocabulary: its size for ids, all of it for texts."""
    spelling = json.loads(tokenizer.backend_tokenizer.to_str())
    words = tokenizer.convert_ids_to_tokens(list(range(vocab)))
    cut = json.dumps(spelling["pre_tokenizer"])
    if spelling["model"]["type"] != "BPE" or "ByteLevel" not in cut:
        raise ModelError(
            "cannot write a GGUF file: only a byte-level BPE tokenizer is supported"
        )
    special = {one["id"] for one in spelling["added_tokens"] if one["special"]}
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre(DIGITS_APART if r"\\d" in cut else GPT2)
    named = [word or UNUSED.format(row) for row, word in enumerate(words)]
    file.add_token_list(named)
    kinds = [CONTROL if row in special else NORMAL for row in range(vocab)]
    file.add_token_types(kinds)
    file.add_token_merges([*map(" ".join, spelling["model"]["merges"])])
    if tokenizer.chat_template:
        file.add_chat_template(tokenizer.chat_template)
    first = tokenizer("")["input_ids"][:1]
    if first:
        file.add_bos_token_id(first[0])
    file.add_add_bos_token(bool(first))
