"""Writer of a Llama and its tokenizer as a GGUF file; weights keep their dtype, or are
rounded to few bits.

Names follow the specification of GGUF: ggml-org/ggml, docs/gguf.md.
"""

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from foreword.errors import ModelError
from foreword.native.openmp import in_parallel
from foreword_lab.bench.inflate.model import shape_of
from foreword_lab.bench.peers.convert import Source

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
FLOATS = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
"""Types that hold numbers, by dtype."""
DTYPES = {kind: dtype for dtype, kind in FLOATS.items()}
BLOCK = 32
"""Weights of a row that share a scale in every quantized type."""
NORMAL, CONTROL = 1, 3
"""Token types, as numbered by GGUF."""
DIGITS_APART = "smollm"
"""Llama.cpp's name of a pre-tokenizer that splits off digits, then as GPT-2 does."""
GPT2 = "gpt-2"
UNUSED = "[unused{}]"
"""Name of an id that the model has and the tokenizer does not."""


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
    try:
        gguf: Any = import_module("gguf")
    except ImportError as error:
        raise ModelError(
            "cannot write GGUF files without the package gguf. Run: pip install "
            "'foreword[gguf]'"
        ) from error
    model = cast(LlamaForCausalLM, source.model)
    form = form or FLOATS[model.dtype]
    writer = gguf.GGUFWriter(path, "llama")
    _describe(writer, model)
    _spell(writer, source)
    prefix = "ALL" if form == "F32" else "MOSTLY"
    writer.add_file_type(gguf.LlamaFileType[f"{prefix}_{form}"])
    kinds: dict[str, str] = {}
    for name, weight in tensors(model):
        kinds[name] = _kind(weight, form)
        type_ = gguf.GGMLQuantizationType[kinds[name]]
        each, size = gguf.GGML_QUANT_SIZES[type_]
        bytes_ = weight.numel() // each * size
        writer.add_tensor_info(name, weight.shape, np.float32, bytes_, type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()

    def data(item: tuple[str, Tensor]) -> Tensor:
        return _data(item[1], kinds[item[0]])

    for done, held in enumerate(in_parallel(data, tensors(model)), 1):
        writer.write_tensor_data(held.numpy())
        if done % len(NAMES) == 0 or done == len(kinds):
            note(f"{done} of {len(kinds)}: tensors written")
    writer.close()
    return list(kinds.values())


def _kind(weight: Tensor, form: str) -> str:
    """Return the type of a tensor; vectors, and rows that do not fit into the blocks of
    the form, keep their dtype.
    """
    is_matrix = weight.dim() > 1
    fits = form in DTYPES or weight.shape[-1] % BLOCK == 0
    return form if is_matrix and fits else FLOATS[weight.dtype]


def _data(weight: Tensor, kind: str) -> Tensor:
    """Return a tensor as a file holds it, in bytes."""
    if kind in DTYPES:
        return weight.to(DTYPES[kind]).contiguous().view(torch.uint8)
    gguf: Any = import_module("gguf")
    type_ = gguf.GGMLQuantizationType[kind]
    data = gguf.quants.quantize(weight.float().numpy(), type_)
    return torch.from_numpy(data)


def tensors(model: LlamaForCausalLM) -> Iterator[tuple[str, Tensor]]:
    """Yield each weight's GGUF name, and the weight as GGUF has it, vectors float32."""
    shape = shape_of(model.config)
    yield "token_embd.weight", model.model.embed_tokens.weight.detach()
    yield "output_norm.weight", model.model.norm.weight.detach().float()
    if not model.config.tie_word_embeddings:
        yield "output.weight", model.lm_head.weight.detach()
    heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads}
    for number, layer in enumerate(model.model.layers):
        for theirs, ours in NAMES.items():
            weight = layer.get_submodule(theirs).get_parameter("weight").detach()
            if ours in heads:
                weight = interleaved(weight, heads[ours])
            yield (
                f"blk.{number}.{ours}.weight",
                weight.float() if weight.dim() == 1 else weight,
            )


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """Return the rows (head * size, in) of a projection in the order in which llama.cpp
    rotates them.

    Llama.cpp rotates the pair 2i and 2i + 1 of a head by the angle of transformers'
    pair i and size / 2 + i.
    """
    rows, columns = weight.shape
    halves = weight.view(heads, 2, rows // heads // 2, columns)
    return halves.transpose(1, 2).reshape(rows, columns)


def _describe(writer: Any, model: LlamaForCausalLM) -> None:
    config, shape = model.config, shape_of(model.config)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(cast(Any, config).rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _spell(writer: Any, source: Source) -> None:
    """Write the vocabulary: its size for ids, all of it for texts."""
    spelling = source.spelling
    words = source.tokenizer.convert_ids_to_tokens(
        list(range(source.model.config.vocab_size))
    )
    cut = json.dumps(spelling["pre_tokenizer"])
    if spelling["model"]["type"] != "BPE" or "ByteLevel" not in cut:
        raise ModelError(
            "cannot write a GGUF file: only a byte-level BPE tokenizer is supported"
        )
    special = {token["id"] for token in spelling["added_tokens"] if token["special"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(DIGITS_APART if r"\\d" in cut else GPT2)
    writer.add_token_list(
        [
            UNUSED.format(place) if word is None else word
            for place, word in enumerate(words)
        ]
    )
    writer.add_token_types(
        [CONTROL if place in special else NORMAL for place in range(len(words))]
    )
    writer.add_token_merges([" ".join(merge) for merge in spelling["model"]["merges"]])
    if source.tokenizer.chat_template:
        writer.add_chat_template(source.tokenizer.chat_template)
    if source.eos:
        writer.add_eos_token_id(source.eos[0])
    writer.add_add_bos_token(False)
