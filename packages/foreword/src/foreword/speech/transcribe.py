"""`transcribe`: several sounds at once, their windows in the rounds of one engine."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from threading import Lock
from typing import Any, Protocol, cast, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from foreword.errors import InvalidRequest
from foreword.model import Model, Read, Tokenizer, need_tokenizer
from foreword.sampling.noise import seed_of
from foreword.speech.audio import Audio, samples
from foreword.speech.features import FeatureReader
from foreword.speech.options import SpeechOptions, Transcript
from foreword.speech.rules import SpeechRules
from foreword.speech.windows import Runs, Transcriber
from foreword.types import Completion, Delta, Features, Request, SamplingParams
from foreword.wanted import check_wanted

READ_ID = -2
"""Id of the texts that are read only for their logits."""
_READING = Lock()
"""Held while a sound is decoded and its features are computed: they take 30 times the
memory that they keep.
"""
UNUSED = ("logprobs", "trace", "prediction")
"""Parameters of a request that a transcript has no place for."""


@runtime_checkable
class RunsSequences(Protocol):
    """What runs requests: the session of an LLM."""

    target: Model
    tokenizer: Tokenizer | None

    def locked(self) -> AbstractContextManager[None]: ...

    def prepare(self, prompt: Any, params: SamplingParams | None) -> list[Request]: ...

    def begin(self, request: Request) -> None: ...

    def advance(self) -> None: ...

    def forget(self, request: Request) -> None: ...

    def completion(self, request: Request, deltas: Sequence[Delta]) -> Completion: ...


def transcribe(
    llm: RunsSequences,
    audio: Audio | Sequence[Audio],
    params: SamplingParams | None,
    options: SpeechOptions,
) -> list[Transcript]:
    """Transcribe sounds in the rounds of a session; see `LLM.transcribe`."""
    _check(llm.target, params)
    for temperature in options.fallback:
        # refuses a wrong one
        replace(params or SamplingParams(), temperature=temperature)

    def logits(
        window: Features, tokens: Sequence[int], keep: int
    ) -> Float[Tensor, "kept vocab"]:
        with llm.locked():
            llm.target.open(READ_ID, len(tokens))
            try:
                llm.target.give(READ_ID, window)
                return llm.target.read([Read(READ_ID, 0, list(tokens), keep=keep)])
            finally:
                llm.target.close(READ_ID)

    reader, rules = FeatureReader(llm.target), SpeechRules(llm.target)
    transcriber = Transcriber(
        rules,
        need_tokenizer(llm.tokenizer),
        logits,
        llm.target.context,
        options,
        params,
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
    return _run(llm, runs)


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


def _run(llm: RunsSequences, runs: Sequence[Runs]) -> list[Transcript]:
    """Run all transcriptions; each goes on with its next text once the one before is
    complete.
    """
    transcripts: list[Transcript | None] = [None] * len(runs)
    running: dict[int, Request] = {}

    def go_on(number: int, completion: Completion | None) -> None:
        try:
            prompt, params = (
                next(runs[number])
                if completion is None
                else runs[number].send(completion)
            )
        except StopIteration as end:
            transcripts[number] = end.value
            return
        (running[number],) = llm.prepare(prompt, params)
        llm.begin(running[number])

    try:
        for number in range(len(runs)):
            go_on(number, None)
        while running:
            check_wanted()
            for number, request in list(running.items()):
                if request.error:
                    raise request.error
                if request.finish_reason:
                    del running[number]
                    llm.forget(request)
                    go_on(number, llm.completion(request, list(request.unread)))
            if running:
                llm.advance()
    finally:
        for request in running.values():
            llm.forget(request)
    return [one for one in transcripts if one is not None]
