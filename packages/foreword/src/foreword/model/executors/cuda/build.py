"""Builds the graph backend of a model."""

from transformers import PreTrainedModel

from foreword.model.architectures import body, is_seq2seq
from foreword.model.executors.cuda import backend as cuda
from foreword.model.executors.cuda.ahead import AheadBackend
from foreword.model.executors.registry import Order
from foreword.model.executors.torch.attention import NAME
from foreword.model.executors.torch.build import stateful


def refused(model: PreTrainedModel) -> str | None:
    """Return why this backend cannot run the model; None if it can."""
    if is_seq2seq(model.config):
        return "it runs no encoder"
    return cuda.refused(model) or stateful(model)


def build(model: PreTrainedModel, order: Order) -> AheadBackend:
    """Return the graph backend of a model, and give the model its attention."""
    body(model).set_attn_implementation(NAME)  # vision parts keep their own
    backend = AheadBackend(model)
    backend.swaps = None if order.owned else order.swaps
    return backend
