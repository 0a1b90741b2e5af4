"""Distil a small language model from the target's own logits, off-policy, on-policy or mixed (DistillSpec).

Knows the two models and a loss; knows nothing about data files or the loop.
"""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig

from foreword.draft.parcel import SGLANG, SPECULATORS, VLLM, Parcel, sglang, unserved, vllm
from foreword.errors import InvalidRequest, ModelError
from foreword.model import HFModel, check_same, load_tokenizer
from foreword.model.checkpoint import Checkpoint
from foreword.model.config import read_config
from foreword.model.loading import load_weights
from foreword.model.names import INNER, head_dim
from foreword.model.parts import HFConfig
from foreword.train.losses import agreement, compare, overlap
from foreword.train.onpolicy import Writer
from foreword.train.pack import Block
from foreword.train.pupil import Setting
from foreword.train.students import SmallModel


class Distillation:
    """A draft model learns the target's law of the next token; the target is asked on the fly."""

    def __init__(self, setting: Setting, student: SmallModel, module: HFModel | None = None) -> None:
        """`module` is what learns, if it is in memory already.

        Raises InvalidRequest for a share outside 0 to 1, a temperature that is not above 0, or too long blocks.
        """
        target, temperature, on_policy = setting.target, setting.temperature, student.on_policy
        if not 0 <= on_policy <= 1 or temperature <= 0:
            raise InvalidRequest(
                f"on_policy must be in [0, 1] and temperature above 0, got {on_policy} and {temperature}"
            )
        module = _beginning(setting, student) if module is None else module
        context = getattr(module.config.get_text_config(), "max_position_embeddings", None)
        if context is not None and setting.length > context:
            raise InvalidRequest(
                f"blocks of {setting.length} tokens exceed the draft's context of {context}; shorten length"
            )
        for model in (target, module):
            if getattr(model, "_is_stateful", False):
                raise ModelError(
                    f"{type(model).__name__} is recurrent, and records packed side by side would mix in it"
                )
        self.target = target.eval().requires_grad_(False)
        self.module: HFModel = module
        self._tokenizer = setting.tokenizer
        self._loss, self.temperature, self.on_policy = setting.loss, temperature, on_policy
        self._vocab = min(target.config.get_text_config().vocab_size, module.config.get_text_config().vocab_size)
        self._writer = Writer(module, setting.eos, temperature)

    @property
    def parameters(self) -> int:
        return self.module.num_parameters()

    def save(self, folder: Path) -> None:
        """Write the draft as transformers does, in the numbers of the target's checkpoint, with its tokenizer."""
        stored = copy.deepcopy(self.module)
        nn.Module.to(stored, self.target.dtype)
        stored.generation_config = self.target.generation_config
        stored.save_pretrained(folder)
        self._tokenizer.save_pretrained(folder)

    def to(self, device: torch.device) -> None:
        nn.Module.to(self.target, device)

    def data(self, block: Block, seed: int) -> Block:
        if self.on_policy and random.Random(seed).random() < self.on_policy:
            return self._writer.rewrite(block, seed)
        return block

    def loss(self, module: nn.Module, block: Block) -> Float[Tensor, ""]:
        target, draft = self._logits(module, block)
        return compare(self._loss, target, draft, self.temperature).sum()

    def measure(self, module: nn.Module, block: Block) -> dict[str, Float[Tensor, ""]]:
        """The loss, acceptance at temperature 1 (1 - TV), and acceptance at 0 (same likeliest token)."""
        target, draft = self._logits(module, block)
        return {
            "loss": compare(self._loss, target, draft, self.temperature).sum(),
            "acceptance": compare(overlap, target, draft).sum(),
            "agreement": agreement(target, draft).float().sum(),
        }

    def _logits(
        self, module: nn.Module, block: Block
    ) -> tuple[Float[Tensor, "learnt vocab"], Float[Tensor, "learnt vocab"]]:
        """Both models' logits where a learnt token comes next."""
        learnt = block.learnt[:, 1:]
        # Positions that begin again at 0 tell transformers where a record ends: no record sees another.
        read: dict[str, Any] = {"input_ids": block.tokens, "position_ids": block.positions, "use_cache": False}
        with torch.no_grad():
            target = self.target(**read).logits[:, :-1][learnt]
        draft = module(**read).logits[:, :-1][learnt]
        return target[:, : self._vocab], draft[:, : self._vocab]


def pack(found: Checkpoint, target: HFConfig, engine: str) -> Parcel:
    """A draft model is a checkpoint of transformers already: it is copied, with its tokenizer."""
    if engine == SPECULATORS:
        raise unserved(f"a draft model of its own ({found.source}) in this layout", engine, (VLLM, SGLANG))
    model, tokenizer = load(found.source, next(iter(found.tensors.values())).dtype), load_tokenizer(found.source)
    if target.name_or_path:
        check_same(load_tokenizer(target.name_or_path), tokenizer)

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    start = {VLLM: vllm("draft_model", 5), SGLANG: sglang("STANDALONE")}
    return Parcel(write=write, names=frozenset(found.tensors), start=start[engine])


def _beginning(setting: Setting, student: SmallModel) -> HFModel:
    if student.draft is None:
        return new(setting.source, layers=student.layers, hidden=student.hidden, seed=setting.seed)
    check_same(setting.tokenizer, load_tokenizer(student.draft))
    return load(student.draft, torch.float32)


def load(source: str | Path, dtype: torch.dtype) -> HFModel:
    """A causal model as transformers makes it, on the CPU. Raises ModelError when it cannot be had."""
    return load_weights(source, read_config(source), dtype)


def smaller(config: PreTrainedConfig, layers: int = 1, hidden: int | None = None) -> PreTrainedConfig:
    """The target's config with fewer layers and, if asked for, a smaller hidden size; the rest is scaled along.

    Heads keep their size. Raises InvalidRequest when the sizes do not fit together.
    """
    found = copy.deepcopy(config)
    wide: int = config.hidden_size
    head = head_dim(config)
    hidden = wide if hidden is None else hidden
    if layers < 1 or hidden < head or hidden % head:
        raise InvalidRequest(
            f"a draft needs at least one layer and a hidden size in multiples of {head}, the target's heads"
        )
    found.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        found.layer_types = config.layer_types[-layers:]
    if hidden != wide:
        heads = hidden // head
        found.hidden_size, found.num_attention_heads = hidden, heads
        if hasattr(config, "num_key_value_heads"):
            groups = config.num_attention_heads // config.num_key_value_heads
            found.num_key_value_heads = heads // groups if heads % groups == 0 else heads
        for name in INNER:
            if (inner := getattr(config, name, None)) is not None:
                setattr(found, name, max(8, round(inner * hidden / wide / 8) * 8))
    return found


def new(target: str | Path, *, layers: int = 1, hidden: int | None = None, seed: int = 0) -> HFModel:
    """A draft with random weights of the target's kind, float32."""
    config = read_config(target)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(smaller(config, layers, hidden), dtype=torch.float32)
