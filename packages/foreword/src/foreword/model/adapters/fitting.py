"""Checks that an adapter belongs to a model: its layers, and their sizes."""

from pathlib import Path

from torch import nn
from transformers.pytorch_utils import Conv1D

from foreword.model.adapters.folder import LoraFolder, Pair
from foreword.model.adapters.settings import refusal
from foreword.model.architectures import body, shape
from foreword.model.executors.torch.packed_linear import PackedLinear
from foreword.model.model import Model


def fitting(model: Model, folder: LoraFolder) -> dict[str, nn.Module]:
    """Return the linear layers that an adapter adds to, by name.

    Raises ModelError where it is of another model.
    """
    linear = _linear_layers(body(model.hf), model.hf)
    for layer, pair in folder.pairs.items():
        if layer not in linear:
            raise refusal(
                folder.path,
                f"{model.name} has no linear layer {layer!r} in its decoder",
            )
        _check_sizes(folder.path, layer, linear[layer], pair)
    for layer in linear:
        if layer not in folder.pairs and folder.settings.needs(layer):
            raise refusal(
                folder.path,
                f"it has no weights for {layer!r}, which its settings name",
            )
    return {layer: linear[layer] for layer in folder.pairs}


def _linear_layers(decoder: nn.Module, whole: nn.Module) -> dict[str, nn.Module]:
    """Return the linear layers of a decoder, by their names in the whole model."""
    inside = set(decoder.modules())
    kinds = (nn.Linear, PackedLinear, Conv1D)
    return {
        name: layer
        for name, layer in whole.named_modules()
        if layer in inside and isinstance(layer, kinds)
    }


def _check_sizes(path: Path, name: str, layer: nn.Module, pair: Pair) -> None:
    """Raise ModelError where a pair is for a layer of another size."""
    if isinstance(layer, PackedLinear):
        sizes = (layer.in_features, layer.out_features)
    else:
        outputs, inputs = shape(layer)
        sizes = (inputs, outputs)
    fits = (pair.down.shape[1], pair.up.shape[0])
    if fits != sizes:
        raise refusal(
            path,
            f"its matrices of {name!r} take {fits[0]} numbers and give {fits[1]}, "
            f"and this layer takes {sizes[0]} and gives {sizes[1]}: it was trained for "
            "another model",
        )
