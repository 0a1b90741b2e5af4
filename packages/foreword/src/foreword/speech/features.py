"""Log-mel features of sound, by the feature extractor of a checkpoint."""

from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from transformers import AutoFeatureExtractor

from foreword.errors import ModelError, words
from foreword.model import Model
from foreword.model.loading import hub
from foreword.speech.audio import Samples
from foreword.types import Features

FILE = "preprocessor_config.json"


class Sound:
    """The features of a whole sound, padded with silence to one window at least."""

    def __init__(
        self, mels: Float[Tensor, "bins frames"], size: int, duration: float
    ) -> None:
        self.frames = mels.shape[1]
        self.size = size
        self.duration = duration
        self._mels = mels
        self._windows: WeakValueDictionary[int, Features] = WeakValueDictionary()

    def window(self, seek: int) -> Features:
        """Return the window that begins at frame `seek`, padded with zeros; the same
        one while it is in use.
        """
        window = self._windows.get(seek)
        if window is None:
            part = self._mels[:, seek : seek + self.size]
            window = self._windows[seek] = Features(
                F.pad(part, (0, self.size - part.shape[1]))
            )
        return window


class FeatureReader:
    """The feature extractor of a model, which cuts sound into windows of the length
    that its encoder reads.
    """

    def __init__(self, model: Model) -> None:
        """Raises ModelError if the feature extractor is missing or of another size."""
        source, config = model.hf.config.name_or_path, model.hf.config
        if not source:
            raise ModelError(
                "cannot transcribe: the model was not loaded from a folder, so its "
                "feature extractor is unknown. Save the model and its processor in a "
                "folder, and give that"
            )
        self._extractor = _load(source)
        self.window: int = 2 * config.max_source_positions
        """Frames of one window; the encoder halves their number."""
        sizes = (
            getattr(self._extractor, "feature_size", None),
            getattr(self._extractor, "nb_max_frames", None),
        )
        if sizes != (config.num_mel_bins, self.window):
            raise ModelError(
                f"cannot transcribe: the feature extractor of {source} gives "
                f"{sizes[0]} bins and windows of {sizes[1]} frames, and the model "
                f"reads {config.num_mel_bins} and {self.window}. Copy {FILE} of the "
                "model again"
            )

    @property
    def rate(self) -> int:
        """Hz. Rate of the samples that it reads."""
        return self._extractor.sampling_rate

    def read(self, samples: Samples) -> Sound:
        """Return the features of a sound."""
        short = len(samples) <= self._extractor.n_samples
        batch = self._extractor(
            samples,
            sampling_rate=self.rate,
            return_tensors="pt",
            truncation=False,
            padding="max_length" if short else "longest",
        )
        return Sound(batch["input_features"][0], self.window, len(samples) / self.rate)


def _load(source: str | Path) -> Any:
    try:
        return AutoFeatureExtractor.from_pretrained(
            source, local_files_only=hub.local_only(source)
        )
    except Exception as error:
        raise ModelError(
            f"cannot load a feature extractor from {source}: {words(error)}. Copy "
            f"{FILE} of the model there"
        ) from error
