"""Transcription of one sound, window by window, as
`WhisperForConditionalGeneration.generate` does it.

A window is 30 seconds. With timestamps, the next one begins where the last whole
segment ended; a text that fails a threshold is written again at a higher temperature
(Radford et al. 2022, section 3.8 and appendix D).
"""

import zlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import cast

from jaxtyping import Float
from torch import Tensor

from foreword.model import Tokenizer
from foreword.speech.features import Sound
from foreword.speech.options import Segment, SpeechOptions, Transcript, add_stats
from foreword.speech.rules import SpeechRules
from foreword.types import Completion, Features, SamplingParams, SpeechPrompt, Stats

Logits = Callable[[Features, Sequence[int], int], Float[Tensor, "kept vocab"]]
"""(window, tokens, keep) -> the target's logits after the last `keep` tokens."""
Runs = Generator[tuple[SpeechPrompt, SamplingParams], Completion, Transcript]
"""Yields what to complete, is sent the completion, and returns the transcript."""

TOKEN_SECONDS, FRAME_SECONDS = 0.02, 0.01
STRIDE = 2
"""Frames of a step of timestamps: of a position of the encoder."""
SEEDS, STEP = 2**63, 5_700_357_409_661_598_721
"""Every text of a sound has a seed of its own, STEP after the one before it."""
WARM = 0.5
"""Temperature from which on a text is not shown to the window after it."""


@dataclass(slots=True)
class Transcriber:
    """A transcription of sounds by one model, with one set of options."""

    rules: SpeechRules
    tokenizer: Tokenizer
    logits: Logits
    context: int
    options: SpeechOptions
    params: SamplingParams | None

    def runs(self, sound: Sound, seed: int) -> Runs:
        """Transcribe one sound."""
        timestamps = self.options.timestamps or sound.frames > sound.size
        window = sound.window(0)
        start = self._start(window, timestamps)
        progress = _Progress(seed, self.options.condition_on_prev_tokens)
        if prompt := self.rules.prompt(self.options.prompt, self.tokenizer):
            progress.texts.append(prompt)
        seek = 0
        while seek < sound.frames:
            size, window = min(sound.frames - seek, sound.size), sound.window(seek)
            tokens = yield from self._window(window, start, timestamps, progress)
            if tokens is None:
                seek += size
                continue
            pieces, done = split(tokens, self.rules.timestamp_begin, size)
            offset = seek * TOKEN_SECONDS / STRIDE
            for begin, end, piece in pieces:
                text = self._text(piece)
                progress.segments.append(
                    Segment(
                        offset + begin * TOKEN_SECONDS,
                        offset + end * TOKEN_SECONDS,
                        text,
                        piece,
                    )
                )
                progress.texts.append(piece)
            seek += done or size
        return progress.transcript(
            self._text,
            self.rules.code(start[1]) if len(start) > 1 else None,
            sound.duration,
        )

    def _start(
        self,
        first: Features,
        timestamps: bool,
    ) -> list[int]:
        """Return the tokens before the text, with the language of the first window."""
        start = self.rules.start(self.options, timestamps)
        if None not in start:
            return [token for token in start if token is not None]
        ids = sorted(self.rules.languages.values())
        prompt = [token for token in start[:1] if token is not None]
        scores = self.logits(first, prompt, 1)[0, ids]
        language = ids[int(scores.argmax())]
        return [language if token is None else token for token in start]

    def _window(
        self,
        window: Features,
        start: list[int],
        timestamps: bool,
        progress: "_Progress",
    ) -> Generator[tuple[SpeechPrompt, SamplingParams], Completion, list[int] | None]:
        """Write the text of one window; None where it is silent."""
        ids = [*self._before(progress), *start]
        processors = self.rules.processors(len(ids), timestamps)
        room = self.context - len(ids)
        params = self.params or SamplingParams(temperature=0, max_tokens=room)
        params = replace(
            params,
            n=1,
            max_tokens=max(1, min(params.max_tokens, room)),
            processors=(*processors, *params.processors),
        )
        tokens: list[int] = []
        for temperature in (params.temperature, *self.options.fallback):
            seed = progress.next_seed()
            attempt = replace(params, temperature=temperature, seed=seed)
            completion = yield SpeechPrompt(window, tuple(ids)), attempt
            progress.add(completion)
            progress.condition = (
                self.options.condition_on_prev_tokens and temperature < WARM
            )
            tokens = list(completion.tokens)
            fails, silent = self._failure(window, ids, len(start), tokens, attempt)
            if silent:
                return None
            if tokens[-1] in self.rules.eos:
                tokens.pop()
            if not fails:
                break
        return tokens

    def _before(self, progress: "_Progress") -> list[int]:
        """Return the text before a window that the decoder reads, with the token that
        marks it; empty for none.
        """
        if not (progress.texts and (progress.condition or self.options.prompt.strip())):
            return []
        texts = progress.texts if progress.condition else progress.texts[:1]
        whole = [token for text in texts for token in self._single_end(text)]
        return [*self.rules.previous, *whole[-(self.context // 2 - 1) :]]

    def _single_end(self, tokens: list[int]) -> list[int]:
        doubled = len(tokens) > 2 and tokens[-2] >= self.rules.timestamp_begin
        return tokens[:-1] if doubled else tokens

    def _failure(
        self,
        window: Features,
        ids: list[int],
        start: int,
        tokens: list[int],
        params: SamplingParams,
    ) -> tuple[bool, bool]:
        """Return whether a text fails a threshold, and whether its window is silent."""
        options = self.options
        fails = (
            options.compression_ratio_threshold is not None
            and compression_ratio(tokens, self.rules.vocab)
            > options.compression_ratio_threshold
        )
        if options.logprob_threshold is None:
            return fails, False
        rows = self.logits(window, [*ids, *tokens[:-1]], start + len(tokens) - 1)
        unlikely = (
            self._mean_logprob(rows[start - 1 :], ids, tokens, params)
            < options.logprob_threshold
        )
        if unlikely and options.no_speech_threshold is not None:
            silence = float(rows[0].float().softmax(-1)[self.rules.no_speech])
            if silence > options.no_speech_threshold:
                return False, True
        return fails or unlikely, False

    def _mean_logprob(
        self,
        rows: Float[Tensor, "tokens vocab"],
        ids: list[int],
        tokens: list[int],
        params: SamplingParams,
    ) -> float:
        """Return the mean log-probability of tokens, under the rules of the text and
        without temperature.
        """
        total = 0.0
        for index, token in enumerate(tokens):
            read = rows.new_tensor([[*ids, *tokens[:index]]]).long()
            row = rows[index : index + 1]
            for processor in params.processors:
                row = processor(read, row)
            total += float(row.float().log_softmax(-1)[0, token])
        return total / len(tokens)

    def _text(self, tokens: list[int]) -> str:
        ids = [token for token in tokens if token < self.rules.timestamp_begin]
        return cast("str", self.tokenizer.decode(ids, skip_special_tokens=True))


@dataclass(slots=True)
class _Progress:
    """The transcript of one sound so far."""

    seed: int
    condition: bool
    """Whether the next window is transcribed after the text of those before it."""
    texts: list[list[int]] = field(default_factory=list)
    """Tokens of the prompt, if there is one, and of every segment."""
    segments: list[Segment] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    completions: list[Completion] = field(default_factory=list)

    def next_seed(self) -> int:
        return (self.seed + STEP * len(self.completions)) % SEEDS

    def add(self, completion: Completion) -> None:
        self.completions.append(completion)
        add_stats(self.stats, completion.stats)

    def transcript(
        self,
        decode: Callable[[list[int]], str],
        language: str | None,
        duration: float,
    ) -> Transcript:
        tokens = [token for segment in self.segments for token in segment.tokens]
        reasons = [one.finish_reason for one in self.completions]
        undrafted = (one.undrafted for one in self.completions if one.undrafted)
        return Transcript(
            text=decode(tokens),
            tokens=tokens,
            segments=self.segments,
            language=language,
            duration=duration,
            finish_reason="length" if "length" in reasons else "stop",
            seed=self.seed,
            stats=self.stats,
            method=self.completions[-1].method,
            undrafted=next(undrafted, None),
        )


Piece = tuple[float, float, list[int]]
"""Start and end in timestamps since the start of the window, and the tokens."""


def split(
    tokens: list[int], timestamp_begin: int, frames: int
) -> tuple[list[Piece], int]:
    """Return the segments of a window's text, and the number of its frames that they
    cover.

    Two timestamps in a row end a segment. Text after the last such pair is dropped, as
    the next window begins with it, unless it ends with a single timestamp: then no
    speech follows.
    """
    stamps = [token >= timestamp_begin for token in tokens]
    pairs = enumerate(pairwise(stamps), 1)
    ends = [index for index, (left, right) in pairs if left and right]
    if not ends:
        whole = int(frames * FRAME_SECONDS / TOKEN_SECONDS)
        later = [token - timestamp_begin for token in tokens if token > timestamp_begin]
        return [(0, later[-1] if later else whole, tokens)], frames
    final = stamps[-2:] == [False, True]
    if final:
        ends.append(len(tokens))
    else:
        ends[-1] += 1  # the second timestamp shows that this was no end of speech
    pieces: list[Piece] = []
    for number, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        piece = tokens[begin:end]
        closing = piece[-2] if number == len(ends) - 1 and not final else piece[-1]
        pieces.append((piece[0] - timestamp_begin, closing - timestamp_begin, piece))
    return pieces, frames if final else (
        tokens[ends[-1] - 2] - timestamp_begin
    ) * STRIDE


def compression_ratio(tokens: list[int], vocab: int) -> float:
    """Return how much smaller zlib makes the ids of a text: the more often it repeats
    itself, the larger.
    """
    width = (vocab.bit_length() - 1) // 8 + 1
    data = b"".join(token.to_bytes(width, "little") for token in tokens)
    return len(data) / len(zlib.compress(data))
