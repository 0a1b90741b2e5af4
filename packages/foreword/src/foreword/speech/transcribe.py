"""Transcriptions of several sounds, for `Session.run`, in the rounds of one engine."""

import secrets
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from threading import Lock
from typing import cast

from jaxtyping import Float
from torch import Tensor

from foreword.errors import InvalidRequest
from foreword.model import Model, Read, Tokenizer, need_tokenizer
from foreword.sampling.noise import seed_of
from foreword.speech.audio import Audio, samples
from foreword.speech.features import FeatureReader
from foreword.speech.options import SpeechOptions
from foreword.speech.rules import SpeechRules
from foreword.speech.windows import Runs, Transcriber
from foreword.types import Features, SamplingParams
from foreword.wanted import check_wanted

READ_ID = -2
"""Id of the texts that are read only for their logits."""
_READING = Lock()
"""Held while a sound is decoded and its features are computed: they take 30 times the
memory that they keep.
"""
UNUSED = ("logprobs", "trace", "prediction")
"""Parameters of a request that a transcript has no place for."""


def transcriptions(
    target: Model,
    tokenizer: Tokenizer | None,
    locked: Callable[[], AbstractContextManager[None]],
    audio: Audio | Sequence[Audio],
    params: SamplingParams | None,
    options: SpeechOptions,
) -> list[Runs]:
    """Return the transcriptions of `LLM.transcribe`; `locked` holds rounds' lock."""
    _check(target, params)
    for temperature in options.fallback:
        # refuses a wrong one
        replace(params or SamplingParams(), temperature=temperature)

    def logits(
        window: Features, tokens: Sequence[int], keep: int
    ) -> Float[Tensor, "kept vocab"]:
        with locked():
            target.open(READ_ID, len(tokens))
            try:
                target.give(READ_ID, window)
                return target.read([Read(READ_ID, 0, list(tokens), keep=keep)])
            finally:
                target.close(READ_ID)

    reader, rules = FeatureReader(target), SpeechRules(target)
    transcriber = Transcriber(
        rules, need_tokenizer(tokenizer), logits, target.context, options, params
    )
    runs: list[Runs] = []
    for clip in audio if isinstance(audio, list) else [cast("Audio", audio)]:
        with _READING:
            check_wanted()
            sound = reader.read(samples(clip, reader.rate, options.max_seconds))
        for number in range(params.n if params else 1):
            first = params.seed if params else 0
            seed = secrets.randbits(63) if first is None else seed_of(first, number)
            runs.append(transcriber.runs(sound, seed))
    return runs


def _check(target: Model, params: SamplingParams | None) -> None:
    if target.seq2seq is None or not target.seq2seq.sound:
        raise InvalidRequest(
            f"cannot transcribe with {target.name}: it reads no sound. Use a speech "
            "model as Whisper"
        )
    if not isinstance(params, SamplingParams | None):
        raise InvalidRequest(f"params must be SamplingParams, got {params!r}")
    plain = SamplingParams()
    for name in UNUSED if params is not None else ():
        if getattr(params, name) != getattr(plain, name):
            raise InvalidRequest(
                f"cannot transcribe with {name!r}: a transcript has none. Leave it out"
            )
