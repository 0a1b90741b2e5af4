"""Provides loading of a model that is split among ranks."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from transformers.distributed.configuration_utils import DistributedConfig

from foreword.model.loading.config import read_config
from foreword.model.loading.load import empty_model, load_weights
from foreword.model.loading.options import dtypes, placed
from foreword.model.parallel.backend import ParallelBackend
from foreword.model.parallel.checks import check_parallel
from foreword.model.parallel.lead import Lead
from foreword.model.parallel.network import loopback
from foreword.model.parallel.ranks import Order, Ranks
from foreword.model.parallel.sums import ordered
from foreword.options import POOL, ModelOptions

if TYPE_CHECKING:
    from foreword.model.model import Model


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
