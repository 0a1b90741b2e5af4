"""The input of an encoder, and what encoders made of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


class Source(tuple[int, ...]):
    """Token ids that encoders read, and the output of each encoder that has read them.

    So an encoder runs once, although a draft model shares it, or several answers are written to one source.
    """

    outputs: dict[nn.Module, Any]

    def __new__(cls, tokens: Iterable[int] = ()) -> Source:
        source = super().__new__(cls, tokens)
        source.outputs = {}
        return source

    @torch.inference_mode()
    def encoded(self, encoder: nn.Module) -> Any:
        """Return what an encoder of transformers gives for these tokens, alone and unpadded."""
        if encoder not in self.outputs:
            tokens = torch.tensor([self], device=next(encoder.parameters()).device)
            self.outputs[encoder] = encoder(input_ids=tokens, return_dict=True)
        return self.outputs[encoder]
