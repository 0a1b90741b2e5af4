"""Loads a model that is split among ranks."""

import gc
import weakref
from collections.abc import Mapping
from math import gcd
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.distributed import tensor_parallel
from transformers.distributed.configuration_utils import DistributedConfig

from foreword.errors import InvalidRequest, ModelError
from foreword.model.architectures import has_vision, is_seq2seq, kv_heads, query_heads
from foreword.model.loading import hub
from foreword.model.loading.config import quantization, read_config
from foreword.model.loading.load import empty_model, load_weights
from foreword.model.loading.options import dtypes, placed
from foreword.model.model import Model
from foreword.model.parallel.backend import ParallelBackend
from foreword.model.parallel.lead import Lead
from foreword.model.parallel.network import loopback
from foreword.model.parallel.ranks import Order, Ranks
from foreword.options import POOL, ModelOptions


def load(make: type[Model], source: str | Path, options: ModelOptions) -> Model:
    """Return the model of a checkpoint, split among the ranks that the options ask for;
    `make` is its class.

    The ranks end with the model. Raises ModelError where one cannot load its share.
    """
    device, _ = placed(options)
    check_parallel(source, options, device)
    order = Order(source, options, device.type)
    with loopback():
        ranks = Ranks(order)
        try:
            control = ranks.join()
            model = shard(make, order)
            ranks.check()
        except BaseException as error:  # noqa: BLE001 - an interrupt ends the ranks too
            ranks.fail(error)
    backend = cast("ParallelBackend", model.backend)
    backend.take_lead(Lead(ranks, control))
    weakref.finalize(backend, ranks.end)
    return model


def shard(make: type[Model], order: Order) -> Model:
    """Return one rank's share of the model. All ranks call this at the same time: the
    probe runs the same forwards on each, and finds the same.
    """
    options = order.options
    trusted = options.trust_remote_code
    device, _ = placed(options)
    config = read_config(order.source, trust_remote_code=trusted)
    dtype, *_ = dtypes(options.dtype, device, None)
    empty: Any = empty_model(config, trust_remote_code=trusted)
    plan = ordered(empty.tp_plan)
    split = DistributedConfig(tp_size=order.count, tp_plan=plan)
    weights = load_weights(
        order.source,
        config,
        dtype,
        trust_remote_code=trusted,
        split={"distributed_config": split},
    )
    model = make(weights, str(order.source), backend=POOL)
    model.trust_remote_code = trusted
    return model


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


def check_devices(device: str, kind: str, ranks: int, accelerators: int) -> None:
    """Raise InvalidRequest for other devices than transformers takes, or too few: one
    accelerator a rank, or the CPU of a machine without accelerators.
    """
    if kind == "cpu" and accelerators == 0:
        return
    if kind != "cuda" or device not in ("auto", "cuda"):
        raise InvalidRequest(
            f"cannot split a model among ranks on device {device!r}: "
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


ORDERED = {"rowwise": "foreword_rowwise", "moe_tp_experts": "foreword_experts"}
"""A style of transformers' plans -> ours, with the sums in order."""


class OrderedRowwise(tensor_parallel.RowwiseParallel):
    """A linear layer whose inputs are split, in inference."""

    def transform_output_post_forward(
        self, module: Any, output: Tensor, mesh: Any
    ) -> Tensor:
        total = summed(output, mesh.get_group())
        bias = module._parameters.get("bias")
        if bias is None:
            return total
        return total + getattr(bias, "to_local", lambda: bias)()


class OrderedExperts(tensor_parallel.MoeExpertsParallel):
    """Experts split among the ranks, in inference."""

    def transform_output_post_forward(
        self, module: Any, output: Tensor, mesh: Any
    ) -> Tensor:
        return summed(output, mesh.get_group())


styles: Any = vars(tensor_parallel)["ALL_PARALLEL_STYLES"]
styles.register(ORDERED["rowwise"], OrderedRowwise())
styles.register(ORDERED["moe_tp_experts"], OrderedExperts())


def summed(part: Tensor, group: Any) -> Tensor:
    """Return the sum of the parts of all ranks, added up from rank 0 on."""
    tensor = part.contiguous()
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor, group=group)
    total = parts[0]
    for other in parts[1:]:
        total = total + other
    return total


def ordered(plan: Mapping[str, str]) -> dict[str, str]:
    """Return a plan of transformers with the sums in order."""
    return {name: ORDERED.get(style, style) for name, style in plan.items()}
