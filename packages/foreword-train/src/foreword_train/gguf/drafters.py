"""Draft models and trained heads (EAGLE-3, DFlash, DSpark) as GGUF files.

Architectures, keys and tensors are as llama.cpp reads them (src/models/eagle3.cpp,
src/models/dflash.cpp).
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from foreword.draft.heads.dflash import DFlashHead
from foreword.draft.heads.dspark import DSparkHead
from foreword.draft.heads.eagle_checkpoint import DRAFT_TOKENS, dump
from foreword.draft.heads.eagle_published import read
from foreword.draft.heads.export_layout import FOLDER, ExportLayout, unsupported_engine
from foreword.draft.heads.loading import check_fits, head_dtype
from foreword.model import load_tokenizer
from foreword.model.architectures import head_dim
from foreword.model.head_layers import HFConfig
from foreword.model.layers import layer_count
from foreword.model.loading.checkpoint import Checkpoint
from foreword_train.gguf import writer
from foreword_train.gguf.source import Source

LLAMA_CPP = "llama.cpp"
FILE = "draft.gguf"
TARGET_FILE = "TARGET.gguf"
"""Target in the start command, where it is no GGUF file yet."""
EAGLE, DFLASH = "eagle3", "dflash"
"""Architectures; a head of DSpark is one of DFlash with a Markov head."""
LAYER = writer.NAMES | {
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
CONFIDENCE = "conf_proj.weight"
ROTARY = "default", "linear", "llama3"
"""Kinds of rotary embeddings whose angles do not depend on the length of a text."""


def command(kind: str, draft_tokens: int, target: HFConfig) -> tuple[str, ...]:
    """Return the command that serves a drafter with llama.cpp."""
    name = str(target.name_or_path)
    served = name if name.endswith(".gguf") else TARGET_FILE
    files = "-m", served, "-md", f"{FOLDER}/{FILE}"
    most = "--spec-draft-n-max", str(draft_tokens)
    return "llama-server", *files, "--spec-type", f"draft-{kind}", *most


def write_model(model: Source, folder: Path) -> None:
    """Write a draft model, and read it back."""
    writer.write(model, folder / FILE)
    llama = cast("LlamaForCausalLM", model.model)
    writer.check(folder / FILE, writer.tensors(llama))


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
    tensors = _renamed(dump(head, head_dtype(checkpoint), target).tensors)
    for name, heads in writer.rotated(llama).items():
        name = f"blk.0.{name}.weight"
        tensors[name] = writer.interleaved(tensors[name], heads)
    tensors |= {"d2t": head.tokens, **_factors(llama, head.rotary)}
    fields = {
        "eagle3.target_layers": list(config.states),
        "eagle3.target_hidden_size": config.target_hidden,
        "eagle3.norm_before_residual": config.norm_before_residual,
        "eagle3.norm_before_fc": config.norm_before_fc,
    }
    start = command(EAGLE, DRAFT_TOKENS, target)
    return _layout(EAGLE, llama, target, fields, tensors, start)


def _masked(
    kind: type[DFlashHead | DSparkHead],
    checkpoint: Checkpoint,
    target: HFConfig,
    engine: str,
) -> ExportLayout:
    """Return a head of this kind as a GGUF file; raises as `eagle` does."""
    head = kind.read(checkpoint)
    layout, sizes = head.layout, head.layout.sizes
    lacks = {
        "sample_from_anchor": layout.sample_from_anchor and not head.FIRST_ROW,
        "biases": sizes.attention_bias,
    }
    lacks |= _unsupported(sizes, layout.states, target)
    _check(checkpoint.source, lacks, engine)
    check_fits(checkpoint.source, head, target)
    tensors = _renamed(head.dump(head_dtype(checkpoint)).tensors)
    if CONFIDENCE in tensors:
        # llama.cpp reads the token before too, which zeros ignore
        unread = sizes.hidden_size + tensors["markov_w1.weight"].shape[1]
        short = unread - tensors[CONFIDENCE].shape[1]
        tensors[CONFIDENCE] = nn.functional.pad(tensors[CONFIDENCE], (0, short))
    if layout.draft_vocab:
        tensors["d2t"] = head.tokens
    tensors |= _factors(sizes, head.rotary.angles)
    fields = {
        "dflash.target_layers": list(layout.states),
        "dflash.block_size": layout.block,
        "dflash.sample_from_anchor": layout.sample_from_anchor,
        "dflash.has_confidence_head": CONFIDENCE in tensors,
        "tokenizer.ggml.mask_token_id": layout.mask,
    }
    start = command(head.METHOD, layout.draft_tokens, target)
    return _layout(DFLASH, sizes, target, fields, tensors, start)


dflash = partial(_masked, DFlashHead)
dspark = partial(_masked, DSparkHead)


def _unsupported(
    config: Any, states: tuple[int, ...], target: HFConfig
) -> dict[str, bool]:
    """Return features of layers that llama.cpp lacks, and whether a head has each."""
    scaling, depth = _scaling(config), layer_count(target.get_text_config())
    return {
        f"positions scaled by {scaling!r}": scaling not in ROTARY,
        f"the activation {config.hidden_act!r}": config.hidden_act != "silu",
        "the target's last hidden state as input": max(states) >= depth,
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
        if layer := re.fullmatch(r"(?:midlayer|layers\.(\d+))\.(.+)", stem):
            stem = f"blk.{layer[1] or 0}.{LAYER[layer[2]]}"
        elif stem:
            stem = OUTER[stem]
        else:
            continue
        renamed[f"{stem}.{kind}"] = tensor.float() if tensor.dim() == 1 else tensor
    return renamed


def _scaling(config: Any) -> str:
    return config.rope_parameters["rope_type"]


def _factors(config: Any, rotary: nn.Module) -> dict[str, Tensor]:
    """Return the divisors of a head's rotary frequencies, where they are scaled."""
    if _scaling(config) == "default":
        return {}
    size = head_dim(config)
    powers = torch.arange(0, size, 2, dtype=torch.float32) / size
    plain = config.rope_parameters["rope_theta"] ** -powers
    return {"rope_freqs.weight": plain / cast(Tensor, rotary.inv_freq)}


def _layout(
    architecture: str,
    config: Any,
    target: HFConfig,
    fields: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    start: tuple[str, ...],
) -> ExportLayout:
    """Return the layout of a head with the tokenizer of its target.

    `config`: of the layers; `fields`: values of the head's own keys.
    """

    def write(folder: Path) -> None:
        tokenizer = load_tokenizer(str(target.name_or_path))
        file = writer.begin(folder / FILE, architecture, config, tokenizer)
        adders = {bool: file.add_bool, int: file.add_uint32, list: file.add_array}
        for name, value in fields.items():
            adders[type(value)](name, value)
        writer.finish(file, tensors.items, writer.KINDS[tensors["fc.weight"].dtype])
        writer.check(folder / FILE, tensors.items())

    return ExportLayout(write=write, names=frozenset(tensors), start=start)
