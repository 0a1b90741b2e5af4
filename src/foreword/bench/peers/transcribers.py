"""Other programs that transcribe sound with the same weights: transformers, and
faster-whisper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor
from transformers import AutoFeatureExtractor, PreTrainedModel

from foreword.bench.lineup import Weights
from foreword.bench.peers import hf
from foreword.bench.peers.engines import FASTER_WHISPER
from foreword.errors import InvalidRequest
from foreword.model.loading import hub
from foreword.speech.audio import Samples

NAMES = (hf.GENERATE, hf.ASSISTED, FASTER_WHISPER)
"""Rows of other programs, whose sampled text differs from ours."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One sound and how it is transcribed, the same for every row."""

    name: str
    """Name of the file."""
    samples: Samples
    rate: int
    temperature: float
    seed: int
    max_tokens: int | None
    """Tokens of one window; None = as many as the context holds."""
    tenant: str
    """A turn has its own, so that no method drafts with answers of an earlier one."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of one transcription."""

    text: str
    tokens: tuple[int, ...] | None
    """None where they are not visible."""
    seconds: float
    """From samples to text."""
    emitted: int = 0
    """Tokens, those included that the next window begins with again.

    0 where they cannot be counted.
    """
    passes: int = 0
    """Forwards of the target that emitted tokens. 0 where they cannot be counted."""
    drafted: int = 0
    accepted: int = 0

    def same(self, plain: Trial) -> bool:
        """Return whether plain decoding wrote the same."""
        if self.tokens is None:
            return self.text.strip() == plain.text.strip()
        return self.tokens == plain.tokens


class Transformers:
    """The same weights under transformers, with its own code for windows."""

    def __init__(self, source: Weights) -> None:
        self._model: PreTrainedModel = source.load()
        self._tokenizer = source.tokenizer(source.target)
        self._extractor = _extractor(source)
        self._passes = 0
        self._model.register_forward_pre_hook(self._count, with_kwargs=True)

    def run(self, ask: Ask, draft: PreTrainedModel | None = None) -> Trial:
        """Transcribe one sound.

        Above temperature 0 transformers samples by itself, from the same seed.
        """
        extra: dict[str, Any] = {"do_sample": False, "num_beams": 1}
        if ask.temperature > 0:
            extra |= {
                "do_sample": True,
                "temperature": ask.temperature,
                "top_k": 0,
                "top_p": 1.0,
            }
        if ask.max_tokens is not None:
            extra["max_new_tokens"] = ask.max_tokens
        if draft is not None:
            extra["assistant_model"] = draft
        generate: Callable[..., Tensor] = cast("Any", self._model).generate
        short, passes = len(ask.samples) <= self._extractor.n_samples, self._passes
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(ask.seed)
            started = perf_counter()
            features = self._extractor(
                ask.samples,
                sampling_rate=ask.rate,
                return_tensors="pt",
                truncation=False,
                padding="max_length" if short else "longest",
            )["input_features"].to(self._model.dtype)
            ids = generate(
                input_features=features, return_timestamps=not short, **extra
            )[0].tolist()
            text = cast("str", self._tokenizer.decode(ids, skip_special_tokens=True))
            seconds = perf_counter() - started
        return Trial(text, tuple(ids), seconds, passes=self._passes - passes)

    def _count(
        self,
        _module: torch.nn.Module,
        _inputs: tuple[object, ...],
        options: dict[str, Any],
    ) -> None:
        # the forward that detects the language has no cache
        self._passes += options.get("use_cache") is not False


def assistant(model: PreTrainedModel) -> PreTrainedModel:
    """Return a draft model with the settings of the text benchmark."""
    model.generation_config.update(**hf.ASSISTANT)
    return model


def converted(source: Weights) -> Any:
    """Return faster-whisper with the same weights, converted for CTranslate2.

    Raises InvalidRequest without it.
    """
    if find_spec("faster_whisper") is None:
        raise InvalidRequest("it is not installed. Run: pip install faster-whisper")
    converters = import_module("ctranslate2.converters")
    dtype = str(source.dtype).removeprefix("torch.")
    with TemporaryDirectory(prefix="foreword-speech-") as folder:
        model = converters.TransformersConverter(str(source.target))
        model.convert(folder, quantization=dtype, force=True)
        source.tokenizer(source.target).save_pretrained(folder)
        _extractor(source).save_pretrained(folder)
        whisper = import_module("faster_whisper").WhisperModel
        return whisper(
            folder,
            device="cpu",
            compute_type=dtype,
            cpu_threads=torch.get_num_threads(),
        )


def faster_whisper(model: Any, ask: Ask) -> Trial:
    """Transcribe one sound by a model of `converted`, without beams, fallback and
    thresholds.
    """
    started = perf_counter()
    segments, _ = model.transcribe(
        ask.samples,
        beam_size=1,
        best_of=1,
        temperature=ask.temperature,
        compression_ratio_threshold=None,
        log_prob_threshold=None,
        no_speech_threshold=None,
        condition_on_previous_text=False,
        without_timestamps=len(ask.samples) <= model.feature_extractor.n_samples,
        max_new_tokens=ask.max_tokens,
    )
    text = "".join(segment.text for segment in segments)
    return Trial(text, None, perf_counter() - started)


def _extractor(source: Weights) -> Any:
    return AutoFeatureExtractor.from_pretrained(
        source.target, local_files_only=hub.local_only(source.target)
    )
