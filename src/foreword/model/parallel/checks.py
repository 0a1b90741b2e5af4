"""Provides the checks of a model that is to be split among ranks, before anything is
loaded.
"""

from __future__ import annotations

import gc
from math import gcd
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedConfig

from foreword.errors import InvalidRequest, ModelError
from foreword.model.architectures import kv_heads, query_heads
from foreword.model.encoder import is_seq2seq
from foreword.model.loading import hub
from foreword.model.loading.config import read_config
from foreword.model.loading.load import empty_model
from foreword.model.loading.quantized import quantization
from foreword.model.vision.rows import has_vision
from foreword.options import ModelOptions

HEAD = "lm_head"
"""The part that a plan names even where it splits no layer."""
ALONE = "Leave 'tensor_parallel' out"
"""What to do with a model that cannot be split."""


def check_parallel(
    source: str | Path, options: ModelOptions, device: torch.device
) -> None:
    """Raise InvalidRequest or ModelError where a checkpoint cannot be split among the
    ranks that the options ask for; reads no weights.
    """
    ranks = options.tensor_parallel
    trusted = options.trust_remote_code
    _check_process()
    accelerators = torch.accelerator.device_count()
    check_devices(options.device, device.type, ranks, accelerators)
    config = read_config(source, trust_remote_code=trusted, seq2seq=True)
    check_kind(str(source), config, gguf=hub.gguf(source) is not None)
    check_heads(str(source), config.get_text_config(), ranks)
    plan: Any = empty_model(config, trust_remote_code=trusted).tp_plan
    if not set(plan or ()) - {HEAD}:
        kind = config.model_type
        raise ModelError(
            f"cannot split {source} among {ranks} ranks: "
            f"transformers has no plan to split models of type {kind!r}. "
            f"{ALONE}"
        )


def check_kind(name: str, config: PreTrainedConfig, *, gguf: bool) -> None:
    """Raise ModelError for a kind of model that only other executors run, or that needs
    more than its text.
    """
    kind = None
    if gguf or quantization(config):
        kind = "it is quantized"
    elif is_seq2seq(config):
        kind = "it is an encoder-decoder"
    elif has_vision(config):
        kind = "it reads images"
    if kind is not None:
        raise ModelError(
            f"cannot split {name} among ranks: {kind}. "
            f"{ALONE}, or give a model of text in 16 or 32 bits"
        )


def check_heads(name: str, config: Any, ranks: int) -> None:
    """Raise ModelError where attention heads, or heads of keys and values, cannot be
    dealt out evenly.
    """
    queries = query_heads(config)
    keys = kv_heads(config)
    common = gcd(queries, keys)
    if common % ranks == 0:
        return
    counts = range(2, common + 1)
    fitting = [str(count) for count in counts if common % count == 0]
    fix = f"Use {' or '.join(fitting)}" if fitting else ALONE
    raise ModelError(
        f"cannot split {name} among {ranks} ranks: "
        f"{ranks} does not divide its {queries} attention heads "
        f"and {keys} heads of keys and values. {fix}"
    )


def check_devices(asked: str, kind: str, ranks: int, accelerators: int) -> None:
    """Raise InvalidRequest for other devices than transformers takes, or too few: one
    accelerator a rank, or the CPU of a machine without accelerators.
    """
    if kind == "cpu" and accelerators == 0:
        return
    if kind != "cuda" or asked not in ("auto", "cuda"):
        raise InvalidRequest(
            f"cannot split a model among ranks on device {asked!r}: "
            "rank 0 takes the first GPU, and each other one the next. "
            "Use device='cuda', or hide the GPUs (CUDA_VISIBLE_DEVICES='')"
        )
    if accelerators < ranks:
        raise InvalidRequest(
            f"cannot split a model among {ranks} ranks: "
            f"each takes a GPU, and there are {accelerators}. "
            "Use fewer ranks"
        )


def _check_process() -> None:
    """Raise InvalidRequest where this process is already in a group of torch's."""
    if dist.is_available() and dist.is_initialized():
        gc.collect()  # a model that nothing refers to any more leaves its group
    if not dist.is_available() or dist.is_initialized():
        raise InvalidRequest(
            "cannot split a model among ranks in this process: "
            "torch.distributed is missing or in use, "
            "by another such model or by torchrun. "
            "Close that model, or start another process"
        )
