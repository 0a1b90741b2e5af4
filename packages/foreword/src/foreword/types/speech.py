"""Inputs of models that read sound: log-mel features, and a window's prompt."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from foreword.types.source import Encoded

__all__ = ["Features", "SpeechPrompt"]

LONGEST = 4 * 3600.0
"""Seconds of the longest sound: features of one take half a MiB while computed."""


class Features(Encoded):
    """Log-mel features of one window of sound, which encoders read."""

    def __init__(self, mels: Float[Tensor, "bins frames"]) -> None:
        self.mels = mels
        self.outputs = {}

    @property
    def rows(self) -> int:
        """Rows of an encoder's output: one for two frames."""
        return self.mels.shape[1] // 2

    def inputs(self, weight: Tensor) -> dict[str, Tensor]:
        return {"input_features": self.mels[None].to(weight.device, weight.dtype)}


@dataclass(frozen=True, slots=True)
class SpeechPrompt:
    """Prompt of a speech model: a window of sound, and its decoder's first tokens."""

    features: Features
    tokens: tuple[int, ...]
