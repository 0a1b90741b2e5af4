"""Draft models and trained heads as GGUF files; llama.cpp reads them in src/models."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from foreword.draft.heads.export_layout import FOLDER, ExportLayout, unsupported_engine
from foreword.errors import ModelError
from foreword.model import load_tokenizer
from foreword.model.architectures import head_dim
from foreword.model.head_layers import HFConfig
from foreword.model.layers import layer_count
from foreword.model.loading.checkpoint import Checkpoint
from foreword_train.gguf import writer
from foreword_train.gguf.source import Source
from foreword_train.gguf.writer import KINDS, NAMES, write_file

LLAMA_CPP = "llama.cpp"
FILE = "draft.gguf"
IN_LAYER = NAMES | {
    "hidden_norm": "attn_norm_2",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
BESIDE = {
    "fc": "fc",
    "norm": "output_norm",
    "lm_head": "output",
    "embed_tokens": "token_embd",
    "input_norm": "enc.output_norm",
    "hidden_norm": "enc.output_norm",
    "markov_head.markov_w1": "markov_w1",
    "markov_head.markov_w2": "markov_w2",
    "confidence_head.proj": "conf_proj",
}
ROTARY = "default", "linear", "llama3"
"""Rotary embeddings whose angles do not depend on the length of a text."""


def command(kind: str, draft_tokens: int, target: HFConfig) -> tuple[str, ...]:
    """Return the command that serves a drafter with llama.cpp."""
    name = str(target.name_or_path)
    served = name if name.endswith(".gguf") else "TARGET.gguf"
    files = "-m", served, "-md", f"{FOLDER}/{FILE}"
    length = "--spec-draft-n-max", str(draft_tokens)
    return "llama-server", *files, "--spec-type", f"draft-{kind}", *length


def write_model(model: Source, folder: Path) -> None:
    """Write a draft model, and read it back."""
    writer.write(model, folder / FILE)
    check(folder / FILE, dict(writer.tensors(cast("LlamaForCausalLM", model.model))))


def check(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise ModelError unless a file holds these tensors, in their dtypes."""
    for read in writer.package().GGUFReader(path).tensors:
        held = tensors[read.name].contiguous().view(torch.uint8).numpy().ravel()
        if not np.array_equal(read.data.view(np.uint8).ravel(), held):
            raise ModelError(
                f"cannot write {path}: {read.name} differs when read back. Nothing was "
                "kept; report this as a bug"
            )


def head_layout(
    architecture: str,
    head: Checkpoint,
    layers: Any,
    target: HFConfig,
    *,
    states: tuple[int, ...],
    rotary: nn.Module,
    fields: Mapping[str, Any],
    features: Mapping[str, bool],
    start: tuple[str, ...],
) -> ExportLayout:
    """Return a head and the tokenizer of its target as a GGUF file.

    Raises InvalidRequest where llama.cpp would compute something else. `head`: in its
    flat layout, with the config of its `layers`. `fields`: values of its own keys.
    `features`: what llama.cpp lacks, and whether the head has it.
    """
    scaling = layers.rope_parameters["rope_type"]
    depth = layer_count(target.get_text_config())
    lacks = {
        **features,
        "biases": layers.attention_bias,
        f"positions scaled by {scaling!r}": scaling not in ROTARY,
        f"the activation {layers.hidden_act!r}": layers.hidden_act != "silu",
        "the target's last state as an input": max(states) >= depth,
    }
    if present := [name for name, has in lacks.items() if has]:
        raise unsupported_engine(f"{head.source}, which has {present[0]}", LLAMA_CPP)
    tensors = _renamed(head.tensors)
    if scaling != "default":
        size = head_dim(layers)
        powers = torch.arange(0, size, 2, dtype=torch.float32) / size
        plain = layers.rope_parameters["rope_theta"] ** -powers
        tensors["rope_freqs.weight"] = plain / cast("Tensor", rotary.inv_freq)
    fields = {f"{architecture}.target_layers": list(states), **fields}
    form = KINDS[head.tensors["fc.weight"].dtype]

    def write(folder: Path) -> None:
        words, path = load_tokenizer(str(target.name_or_path)), folder / FILE
        content = layers, words, tensors.items
        write_file(path, architecture, *content, form=form, fields=fields)
        check(path, tensors)

    return ExportLayout(write=write, names=frozenset(tensors), start=start)


def _renamed(head: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a head's tensors under llama.cpp's names, vectors float32."""
    named: dict[str, Tensor] = {}
    for name, tensor in head.items():
        stem, _, kind = name.rpartition(".")
        if layer := re.fullmatch(r"(?:midlayer|layers\.(\d+))\.(.+)", stem):
            stem = f"blk.{layer[1] or 0}.{IN_LAYER[layer[2]]}"
        else:
            stem = BESIDE.get(stem, "")
        if stem:
            named[f"{stem}.{kind}"] = tensor.float() if tensor.dim() == 1 else tensor
    if (offsets := head.get("d2t")) is not None:
        named["d2t"] = torch.arange(len(offsets)) + offsets
    return named
