"""Options of a transcription, and what it returns."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from math import inf
from numbers import Real
from pathlib import Path
from typing import Any, SupportsInt

from foreword.checks import flag, text
from foreword.errors import InvalidRequest
from foreword.types import Stats
from foreword.types.request import FinishReason
from foreword.types.speech import LONGEST

Audio = str | Path | bytes | tuple[Any, SupportsInt] | Mapping[str, Any]
"""A file or its bytes, samples with a rate in Hz, or {"array", "sampling_rate"}."""
TASKS = ("transcribe", "translate")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechOptions:
    """How sound is transcribed; names and meaning as in
    `WhisperForConditionalGeneration.generate`.
    """

    language: str | None = None
    """Language of the speech, as a code or an English name; None = the model's setting,
    else it is detected.
    """
    task: str | None = None
    """"transcribe", or "translate" into English; None = the model's setting, else
    "transcribe".
    """
    timestamps: bool = False
    """Whether segments have a start and an end; always for more than one window."""
    prompt: str = ""
    """Text that the model takes as written before: names, style."""
    condition_on_prev_tokens: bool = False
    """Whether each window is transcribed after the text of those before it."""
    fallback: tuple[float, ...] = ()
    """Temperatures tried one by one for a window whose text fails a threshold."""
    compression_ratio_threshold: float | None = None
    """A text that compresses better than this fails: it repeats itself."""
    logprob_threshold: float | None = None
    """A text whose mean log-probability is lower fails."""
    no_speech_threshold: float | None = None
    """A window that is silent with a higher probability, and whose text fails by its
    log-probability, is left out.
    """
    max_seconds: float = LONGEST
    """Seconds. A longer sound is refused before it is decoded."""

    def __post_init__(self) -> None:
        if self.task not in (None, *TASKS):
            raise InvalidRequest(
                f"task must be one of {', '.join(TASKS)}, got {self.task!r}"
            )
        if not isinstance(self.language, str | None):
            raise InvalidRequest(
                "language must be a code or a name, or None to detect it, got "
                f"{self.language!r}"
            )
        text("prompt", self.prompt)
        for name in ("timestamps", "condition_on_prev_tokens"):
            flag(name, getattr(self, name))
        for name in (
            "compression_ratio_threshold",
            "logprob_threshold",
            "no_speech_threshold",
        ):
            if not (getattr(self, name) is None or _is_number(getattr(self, name))):
                raise InvalidRequest(
                    f"{name} must be a number or None, got {getattr(self, name)!r}"
                )
        if not (_is_number(self.max_seconds) and 0 < self.max_seconds < inf):
            raise InvalidRequest(
                f"max_seconds must be a positive number, got {self.max_seconds!r}"
            )
        if self.no_speech_threshold is not None and self.logprob_threshold is None:
            raise InvalidRequest(
                "no_speech_threshold needs logprob_threshold. Set both, e.g. 0.6 and "
                "-1.0"
            )
        if isinstance(self.fallback, str) or not isinstance(self.fallback, Iterable):
            raise InvalidRequest(
                f"fallback must be a list of temperatures, got {self.fallback!r}"
            )
        object.__setattr__(self, "fallback", tuple(self.fallback))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and value == value


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a transcript."""

    start: float
    """Seconds from the start of the sound."""
    end: float
    text: str
    tokens: list[int]
    """Token ids, timestamps included."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """Text of one sound."""

    text: str
    tokens: list[int]
    """Token ids of all segments, without the end-of-text token."""
    segments: list[Segment]
    language: str | None
    """Language code of the request, or detected; None of a model for one language."""
    duration: float
    """Seconds of sound."""
    finish_reason: FinishReason
    """"length" if a window was cut at max_tokens, else "stop"."""
    seed: int
    stats: Stats
    """Sum over all windows, those tried again included."""
    method: str = ""
    """How draft tokens were proposed."""
    undrafted: str | None = None
    """Why drafting was turned off, which changes no text; None if it was not."""


def add_stats(total: Stats, more: Stats) -> None:
    """Add the counts and times of one completion to a sum."""
    for entry in fields(Stats):
        ours, theirs = getattr(total, entry.name), getattr(more, entry.name)
        setattr(total, entry.name, _sum(ours, theirs))


def _sum(ours: Any, theirs: Any) -> Any:
    if isinstance(ours, dict):
        return {
            key: ours.get(key, 0) + theirs.get(key, 0) for key in {**ours, **theirs}
        }
    if isinstance(ours, list):
        size = max(len(ours), len(theirs))
        padded = [counts + [0] * (size - len(counts)) for counts in (ours, theirs)]
        return [sum(counts) for counts in zip(*padded, strict=True)]
    return ours + theirs
