"""Data types shared by the four steps: requests, drafts, verdicts and statistics."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foreword.types.draft import Draft, DraftTree, Verdict
    from foreword.types.noise import Noise, Verify
    from foreword.types.params import LogitsProcessor, SamplingParams
    from foreword.types.request import (
        Adapter,
        Batch,
        Completion,
        Delta,
        FinishReason,
        Lists,
        NoiseSource,
        Origin,
        PromptImages,
        Request,
        Scores,
        Stops,
        TextDecoder,
        TokenGrammar,
        TokenLogprob,
    )
    from foreword.types.round import Round
    from foreword.types.source import Encoded, Source
    from foreword.types.speech import Features, SpeechPrompt
    from foreword.types.stats import Clock, Load, Moments, Stats, Tally

_NAMES = {
    "draft": "Draft DraftTree Verdict",
    "noise": "Noise Verify",
    "params": "LogitsProcessor SamplingParams",
    "request": (
        "Adapter Batch Completion Delta FinishReason Lists NoiseSource Origin "
        "PromptImages Request Scores Stops TextDecoder TokenGrammar TokenLogprob"
    ),
    "round": "Round",
    "source": "Encoded Source",
    "speech": "Features SpeechPrompt",
    "stats": "Clock Load Moments Stats Tally",
}
"""Names by the module that has them."""
_HOME = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Adapter",
    "Batch",
    "Clock",
    "Completion",
    "Delta",
    "Draft",
    "DraftTree",
    "Encoded",
    "Features",
    "FinishReason",
    "Lists",
    "Load",
    "LogitsProcessor",
    "Moments",
    "Noise",
    "NoiseSource",
    "Origin",
    "PromptImages",
    "Request",
    "Round",
    "SamplingParams",
    "Scores",
    "Source",
    "SpeechPrompt",
    "Stats",
    "Stops",
    "Tally",
    "TextDecoder",
    "TokenGrammar",
    "TokenLogprob",
    "Verdict",
    "Verify",
]


def __getattr__(name: str) -> object:
    """Import a name on first use: the command line checks parameters without torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'foreword.types' has no attribute {name!r}")
    value = getattr(import_module(f"foreword.types.{_HOME[name]}"), name)
    globals()[name] = value
    return value
