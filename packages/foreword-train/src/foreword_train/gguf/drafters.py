"""Draft models and trained heads (EAGLE-3, DFlash, DSpark) as GGUF files.

Architectures, keys and tensors are as llama.cpp reads them (src/models/eagle3.cpp,
src/models/dflash.cpp).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from foreword.draft.heads.dflash import DFlashHead
from foreword.draft.heads.dspark import DSparkHead
from foreword.draft.heads.eagle_checkpoint import DRAFT_TOKENS, dump
from foreword.draft.heads.eagle_published import read
from foreword.draft.heads.export_layout import (
    FOLDER,
    ExportLayout,
    unsupported_engine,
)
from foreword.draft.heads.loading import check_fits, head_dtype
from foreword.model import load_tokenizer
from foreword.model.architectures import head_dim
from foreword.model.head_layers import HFConfig
from foreword.model.layers import layer_count
from foreword.model.loading.checkpoint import Checkpoint
from foreword_train.gguf.source import Source
from foreword_train.gguf.writer import (
    KINDS,
    NAMES,
    begin,
    check,
    finish,
    interleaved,
    rotated,
    tensors,
    write,
)

LLAMA_CPP = "llama.cpp"
FILE = "draft.gguf"
TARGET_FILE = "TARGET.gguf"
"""Target in the start command, where it is no GGUF file yet."""
EAGLE, DFLASH = "eagle3", "dflash"
"""Architectures; a head of DSpark is one of DFlash with a Markov head."""
LAYER = NAMES | {
    "hidden_norm": "attn_norm_2",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
OUTER = {
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
"""Kinds of rotary embeddings whose angles do not depend on the length of a text."""


def command(kind: str, draft_tokens: int, target: HFConfig) -> tuple[str, ...]:
    """Return the command that serves a drafter with llama.cpp."""
    name = str(target.name_or_path)
    return (
        "llama-server",
        "-m",
        name if name.endswith(".gguf") else TARGET_FILE,
        "-md",
        f"{FOLDER}/{FILE}",
        "--spec-type",
        f"draft-{kind}",
        "--spec-draft-n-max",
        str(draft_tokens),
    )


def write_model(model: Source, folder: Path) -> None:
    """Write a draft model, and read it back."""
    write(model, folder / FILE)
    check(folder / FILE, tensors(cast("LlamaForCausalLM", model.model)))


@dataclass(frozen=True, slots=True)
class _File:
    """Content of a head's file."""

    architecture: str
    config: Any
    """Config of the layers."""
    target: HFConfig
    fields: Mapping[str, Any]
    """Values of the head's own keys."""
    weights: Mapping[str, Tensor]
    mask: int | None = None
    """Mask token id."""

    def layout(self, kind: str, draft_tokens: int) -> ExportLayout:
        """Return the layout of this file for llama.cpp's method `kind`."""
        start = command(kind, draft_tokens, self.target)
        return ExportLayout(
            write=self.write, names=frozenset(self.weights), start=start
        )

    def write(self, folder: Path) -> None:
        """Write the head with the tokenizer of its target, and read it back."""
        tokenizer = load_tokenizer(str(self.target.name_or_path))
        path = folder / FILE
        writer = begin(path, self.architecture, self.config, tokenizer)
        if self.mask is not None:
            writer.add_mask_token_id(self.mask)
        adders = {bool: writer.add_bool, int: writer.add_uint32, list: writer.add_array}
        for name, value in self.fields.items():
            adders[type(value)](f"{self.architecture}.{name}", value)
        finish(writer, self.weights.items, KINDS[self.weights["fc.weight"].dtype])
        check(path, self.weights.items())


def eagle(checkpoint: Checkpoint, target: HFConfig, engine: str) -> ExportLayout:
    """Return an EAGLE-3 head as a GGUF file.

    Raises ModelError where the head is for another target, InvalidRequest where
    llama.cpp would compute something else.
    """
    head = read(checkpoint, target)
    config = head.config
    llama = config.llama
    llama.num_hidden_layers = 1  # which some configs leave out
    lacks = {
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "norms over queries and keys": config.head_norms,
        "a sliding window": config.window is not None,
        "biases": llama.attention_bias or llama.mlp_bias,
        f"{len(config.states)} hidden states": len(config.states) != 3,
    }
    lacks |= _unsupported(llama, config.states, target)
    _check(checkpoint.source, lacks, engine)
    weights = _renamed(dump(head, head_dtype(checkpoint), target).tensors)
    for name, heads in rotated(llama).items():
        name = f"blk.0.{name}.weight"
        weights[name] = interleaved(weights[name], heads)
    fields = {
        "target_layers": list(config.states),
        "target_hidden_size": config.target_hidden,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
    }
    weights["d2t"] = head.tokens
    weights |= _factors(llama, head.rotary)
    return _File(EAGLE, llama, target, fields, weights).layout(EAGLE, DRAFT_TOKENS)


def dflash(checkpoint: Checkpoint, target: HFConfig, engine: str) -> ExportLayout:
    """Return a DFlash head as a GGUF file; raises as `eagle` does."""
    return _masked(DFlashHead.read(checkpoint), checkpoint, target, engine)


def dspark(checkpoint: Checkpoint, target: HFConfig, engine: str) -> ExportLayout:
    """Return a DSpark head as a GGUF file; raises as `eagle` does."""
    return _masked(DSparkHead.read(checkpoint), checkpoint, target, engine)


def _masked(
    head: DFlashHead | DSparkHead,
    checkpoint: Checkpoint,
    target: HFConfig,
    engine: str,
) -> ExportLayout:
    layout, sizes = head.layout, head.layout.sizes
    lacks = {
        "sample_from_anchor": layout.sample_from_anchor and not head.FIRST_ROW,
        "biases": sizes.attention_bias,
    }
    lacks |= _unsupported(sizes, layout.states, target)
    _check(checkpoint.source, lacks, engine)
    check_fits(checkpoint.source, head, target)
    weights = _renamed(head.dump(head_dtype(checkpoint)).tensors)
    fields = {
        "target_layers": list(layout.states),
        "block_size": layout.block,
        "sample_from_anchor": layout.sample_from_anchor,
    }
    if isinstance(head, DSparkHead):
        confidence = weights.get("conf_proj.weight")
        fields["has_confidence_head"] = confidence is not None
        if confidence is not None and not head.assured_by_token:
            # llama.cpp reads the token before too
            unread = confidence.new_zeros(1, head.rank)
            weights["conf_proj.weight"] = torch.cat([confidence, unread], -1)
    if layout.draft_vocab:
        weights["d2t"] = head.tokens
    weights |= _factors(sizes, head.rotary.angles)
    file = _File(DFLASH, sizes, target, fields, weights, layout.mask)
    return file.layout(head.METHOD, layout.draft_tokens)


def _unsupported(
    config: Any, states: tuple[int, ...], target: HFConfig
) -> dict[str, bool]:
    """Return features of layers that llama.cpp lacks, and whether a head has each."""
    scaling = config.rope_parameters["rope_type"]
    return {
        f"positions scaled by {scaling!r}": scaling not in ROTARY,
        f"the activation {config.hidden_act!r}": config.hidden_act != "silu",
        "the target's last hidden state": max(states)
        >= layer_count(target.get_text_config()),
    }


def _check(source: str, lacks: Mapping[str, bool], engine: str) -> None:
    if present := [name for name, has in lacks.items() if has]:
        raise unsupported_engine(f"{source}, which has {present[0]}", engine)


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under llama.cpp's names, vectors float32; without maps of the
    vocabulary.
    """
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stem, _, kind = name.rpartition(".")
        layer = re.fullmatch(r"(?:midlayer|layers\.(\d+))\.(.+)", stem)
        if layer is not None:
            stem = f"blk.{layer[1] or 0}.{LAYER[layer[2]]}"
        elif stem:
            stem = OUTER[stem]
        else:
            continue
        renamed[f"{stem}.{kind}"] = tensor.float() if tensor.dim() == 1 else tensor
    return renamed


def _factors(config: Any, rotary: nn.Module) -> dict[str, Tensor]:
    """Return the divisors of a head's rotary frequencies, where they are scaled."""
    size = head_dim(config)
    powers = torch.arange(0, size, 2, dtype=torch.float32) / size
    plain = config.rope_parameters["rope_theta"] ** -powers
    factors = plain / cast(Tensor, rotary.inv_freq)
    scaled = config.rope_parameters["rope_type"] != "default"
    return {"rope_freqs.weight": factors} if scaled else {}
