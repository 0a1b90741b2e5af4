"""Small GGUF files for tests: of any model, in any type that gguf quantizes to."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import starter
from foreword.model import load_tokenizer
from foreword_train.gguf import writer as writer_of_ours
from foreword_train.gguf.source import source as source_of
from foreword_train.gguf.writer import interleaved

MATRIX, BLOCK = 2, 32
TOKENS = 512
"""Tokens of the small checkpoint: the package gguf parses slowly."""


def small_checkpoint(folder: Path) -> Path:
    """Save the bundled draft model in bfloat16 with its first tokens only."""
    model = AutoModelForCausalLM.from_pretrained(starter.draft(), dtype=torch.bfloat16)
    model.resize_token_embeddings(TOKENS)
    model.save_pretrained(folder)
    for file in ("tokenizer_config.json", "chat_template.jinja"):
        (folder / file).write_bytes((starter.draft() / file).read_bytes())
    about = json.loads((starter.draft() / "tokenizer.json").read_text("utf-8"))
    bpe = about["model"]
    vocab = {token: number for token, number in bpe["vocab"].items() if number < TOKENS}
    merges = [pair for pair in bpe["merges"] if "".join(pair) in vocab]
    about["model"] = bpe | {"vocab": vocab, "merges": merges}
    (folder / "tokenizer.json").write_text(json.dumps(about), "utf-8")
    return folder


def small(folder: Path) -> Path:
    """Write a file of the small checkpoint, which is saved beside it."""
    checkpoint = small_checkpoint(folder / "checkpoint")
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)
    path = folder / "draft.gguf"
    tokenizer = load_tokenizer(checkpoint)
    writer_of_ours.write(source_of("the draft", model, tokenizer), path)
    return path


def write(
    model: PreTrainedModel,
    path: Path,
    architecture: str,
    kind: str = "F32",
    words: Path | None = None,
    **more: Any,
) -> Path:
    """Write a model as llama.cpp's converter does. `words`: its tokenizer's file, None
    = none. `more`: fields by name, dots as two underscores; arrays become tensors.
    """
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    if words is not None:
        copy_fields(gguf.GGUFReader(words), writer, {})
    rope = config.rope_parameters
    sizes = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "vocab_size": config.vocab_size,
        "rope.freq_base": float(rope.get("full_attention", rope)["rope_theta"]),
    }
    for name, value in (sizes | more).items():
        name = name.replace("__", ".")
        if isinstance(value, np.ndarray):
            writer.add_tensor(f"{name}.weight", value)
        elif name.startswith("tokenizer."):
            _add_field(writer, name, value)
        else:
            _add_field(writer, f"{architecture}.{name}", value)
    for name, value in _tensors(model, architecture):
        _add(writer, name, value, kind)
    finish(writer)
    return path


def quantized(source: Path, path: Path, kind: str, **more: Any) -> Path:
    """Write a file with the fields of another, changed or added, in another type."""
    read = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, read.fields["general.architecture"].contents())
    copy_fields(read, writer, more)
    for name, value in more.items():
        _add_field(writer, name, value)
    for tensor in read.tensors:
        value = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        _add(writer, tensor.name, value, kind)
    finish(writer)
    return path


def split(source: Path, path: Path, count: int) -> list[Path]:
    """Write the parts of a file, and return their paths: the first has no tensors."""
    read = gguf.GGUFReader(source)
    each = -(-len(read.tensors) // (count - 1))
    writer = gguf.GGUFWriter(
        path,
        read.fields["general.architecture"].contents(),
        split_max_tensors=each,
        small_first_shard=True,
    )
    copy_fields(read, writer, {})
    for tensor in read.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    finish(writer)
    return writer.format_shard_names(path)


def copy_fields(read: Any, writer: Any, changed: dict[str, Any]) -> None:
    """Copy the fields of a file; takes the changed ones out of `changed`."""
    for field in read.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            inner = field.types[-1] if len(field.types) > 1 else None
            value = changed.pop(field.name, field.contents())
            if value is not None:
                writer.add_key_value(field.name, value, field.types[0], inner)


def _tensors(model: PreTrainedModel, architecture: str):
    config = model.config
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture], config.num_hidden_layers)
    state = model.state_dict()
    if config.tie_word_embeddings:
        del state["lm_head.weight"]
    for name, weight in state.items():
        if name.endswith("experts.gate_up_proj"):
            layer = name.split(".")[2]
            gate, up = weight.chunk(2, dim=1)
            yield f"blk.{layer}.ffn_gate_exps.weight", gate.contiguous().numpy()
            yield f"blk.{layer}.ffn_up_exps.weight", up.contiguous().numpy()
            continue
        theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert theirs, name
        if architecture == "llama" and "attn_q." in theirs:
            weight = interleaved(weight, config.num_attention_heads)
        if architecture == "llama" and "attn_k." in theirs:
            weight = interleaved(weight, config.num_key_value_heads)
        if architecture.startswith("gemma") and "norm" in theirs:
            weight = weight + 1
        if not theirs.endswith((".weight", ".bias")):
            theirs = f"{theirs}.weight"
        yield theirs, weight.squeeze(0).numpy()


def _add_field(writer: Any, name: str, value: float | str) -> None:
    if isinstance(value, str):
        writer.add_string(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    else:
        writer.add_float32(name, value)


def _add(writer: Any, name: str, value: np.ndarray, kind: str) -> None:
    value = value.astype(np.float32)
    small = value.ndim < MATRIX or value.shape[-1] % BLOCK
    if small or name.endswith(".bias") or kind == "F32":
        writer.add_tensor(name, value)
    else:
        type_ = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quants.quantize(value, type_), raw_dtype=type_)


def finish(writer: Any) -> None:
    """Write what was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
