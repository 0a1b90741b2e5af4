"""Data types shared by the four steps: requests, drafts, verdicts and statistics."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foreword.types.draft import Draft, DraftTree, Verdict
    from foreword.types.noise import Noise, Verify
    from foreword.types.params import LogitsProcessor, SamplingParams
    from foreword.types.request import (
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

_HOME = {
    "Draft": "draft",
    "DraftTree": "draft",
    "Verdict": "draft",
    "Noise": "noise",
    "Verify": "noise",
    "LogitsProcessor": "params",
    "SamplingParams": "params",
    "Batch": "request",
    "Completion": "request",
    "Delta": "request",
    "NoiseSource": "request",
    "FinishReason": "request",
    "Lists": "request",
    "Origin": "request",
    "PromptImages": "request",
    "TextDecoder": "request",
    "TokenGrammar": "request",
    "Scores": "request",
    "Request": "request",
    "Stops": "request",
    "TokenLogprob": "request",
    "Round": "round",
    "Encoded": "source",
    "Source": "source",
    "Features": "speech",
    "SpeechPrompt": "speech",
    "Clock": "stats",
    "Load": "stats",
    "Moments": "stats",
    "Stats": "stats",
    "Tally": "stats",
}

__all__ = [
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
    """Import a name on first use, so that the command line checks parameters without
    loading torch.
    """
    if name not in _HOME:
        raise AttributeError(f"module 'foreword.types' has no attribute {name!r}")
    value = getattr(import_module(f"foreword.types.{_HOME[name]}"), name)
    globals()[name] = value
    return value
