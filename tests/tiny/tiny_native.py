"""What holds for every model that C runs: its scores, and its weights. Test code."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from foreword.model.architectures import linears
from foreword.model.backend import Mode
from foreword.model.executors.native.build import build
from foreword.model.executors.registry import Order
from foreword.model.kv.reads import Read
from foreword.model.layers import layers_of
from tiny_models import differing, near_truth


def check_near_truth(
    models: tuple[PreTrainedModel, PreTrainedModel], backend: Any, text: list[int]
) -> None:
    """Scores of a text read in two parts are the model's, near the truth."""
    parts = [
        Read(1, 0, text[:23], keep=23),
        Read(1, 23, text[23:], keep=len(text) - 23),
    ]
    found = torch.cat([backend.read([part]) for part in parts])
    ours, theirs = near_truth(models, text, found)
    assert ours < theirs
    assert ours < 0.05


@contextmanager
def owned(source: PreTrainedModel, kept: Any, text: list[int]) -> Iterator[Any]:
    """An owned model holds no weights, and gets them back. Yield it and backend."""
    model = copy.deepcopy(source)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    backend = build(model, Order(Mode.TREE, "eager", owned=True))
    named = [linears(layer).values() for layer in layers_of(model)]
    parts = [part for layer in named for parts in layer for part in parts]
    assert {part.weight.numel() for part in parts} == {0}
    yield model, backend
    backend.open(1, len(text))
    read = [Read(1, 0, text, keep=5)]
    assert torch.equal(backend.read(read), kept.read(read))
    backend.restore()
    assert differing(before, model.state_dict()) == []
