"""The input of an encoder, and what encoders made of it."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Encoded:
    """An input of encoders, and the output of each encoder that has read it.

    So an encoder runs once, although a draft model shares it, or several answers are
    written to one source.
    """

    outputs: dict[nn.Module, Any]

    def inputs(self, weight: Tensor) -> dict[str, Tensor]:
        """Return the arguments of an encoder with such weights."""
        raise NotImplementedError

    @torch.inference_mode()
    def encoded(self, encoder: nn.Module) -> Any:
        """Return the output of a transformers encoder for this input, unpadded."""
        if encoder not in self.outputs:
            self.outputs[encoder] = encoder(
                **self.inputs(next(encoder.parameters())), return_dict=True
            )
        return self.outputs[encoder]


class Source(Encoded, tuple[int, ...]):
    """Token ids that encoders read."""

    def __new__(cls, tokens: Iterable[int] = ()) -> "Source":
        source = super().__new__(cls, tokens)
        source.outputs = {}
        return source

    def inputs(self, weight: Tensor) -> dict[str, Tensor]:
        return {"input_ids": torch.tensor([self], device=weight.device)}
