"""Inputs of models that read sound: log-mel features, and the prompt of one window of sound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["Features", "SpeechPrompt"]


class Features:
    """Log-mel features of one window of sound, and the states of each encoder that has read them.

    So a window is encoded once, although several texts are decoded from it, and a draft model may share the encoder.
    """

    def __init__(self, mels: Float[Tensor, "bins frames"]) -> None:
        self.mels = mels
        self._states: dict[nn.Module, Any] = {}

    def encoded(self, encoder: nn.Module) -> Any:
        """Return what an encoder of transformers gives for these features."""
        if encoder not in self._states:
            weight = next(encoder.parameters())
            with torch.inference_mode():
                self._states[encoder] = encoder(self.mels[None].to(weight.device, weight.dtype), return_dict=True)
        return self._states[encoder]

    def keep(self, encoder: nn.Module, states: Any) -> None:
        """Keep what an encoder has given for these features."""
        self._states[encoder] = states


@dataclass(frozen=True, slots=True)
class SpeechPrompt:
    """What a model of speech reads before it writes: a window of sound, and the first tokens of its decoder."""

    features: Features
    tokens: tuple[int, ...]
