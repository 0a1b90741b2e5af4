"""Speculative decoding for language models: the target model's exact output, faster."""

from importlib import import_module
from typing import TYPE_CHECKING

from foreword.version import VERSION

if TYPE_CHECKING:
    from foreword.api.async_llm import AsyncLLM
    from foreword.api.llm import LLM
    from foreword.errors import (
        ForewordError,
        InvalidRequest,
        ModelError,
        UnknownMethod,
        VocabularyMismatch,
    )
    from foreword.hf import disable, enable, generate, pure
    from foreword.hindsight.whatif import what_if
    from foreword.notebook import show
    from foreword.recording import Recording
    from foreword.speech.options import Segment, Transcript
    from foreword.types import (
        Completion,
        Delta,
        Round,
        SamplingParams,
        Stats,
        TokenLogprob,
    )


__version__ = VERSION

_NAMES = {
    "api.llm": "LLM",
    "api.async_llm": "AsyncLLM",
    "types": "Completion Delta Round SamplingParams Stats TokenLogprob",
    "recording": "Recording",
    "speech.options": "Segment Transcript",
    "hindsight.whatif": "what_if",
    "notebook": "show",
    "hf": "disable enable generate pure",
    "errors": (
        "ForewordError InvalidRequest ModelError UnknownMethod VocabularyMismatch"
    ),
}
"""Names by the module that has them."""
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [
    "LLM",
    "AsyncLLM",
    "Completion",
    "Delta",
    "ForewordError",
    "InvalidRequest",
    "ModelError",
    "Recording",
    "Round",
    "SamplingParams",
    "Segment",
    "Stats",
    "TokenLogprob",
    "Transcript",
    "UnknownMethod",
    "VocabularyMismatch",
    "disable",
    "enable",
    "generate",
    "pure",
    "show",
    "what_if",
]


def __getattr__(name: str) -> object:
    """Import a public name on first use: the command line starts without torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'foreword' has no attribute {name!r}")
    return getattr(import_module(f"foreword.{_HOME[name]}"), name)
