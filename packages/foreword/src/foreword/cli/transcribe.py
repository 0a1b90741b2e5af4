"""`foreword transcribe`: what sound files say, as text, as segments or as JSON."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from foreword.cli.common import early, options, render, runtime
from foreword.cli.common.bundles import bundled, open_llm
from foreword.errors import InvalidRequest
from foreword.options import DraftingOptions, ModelOptions

if TYPE_CHECKING:
    from foreword.speech.options import Transcript

SPEECH = "Speech"
FALLBACK = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Temperatures of --fallback, which Whisper uses too."""
THRESHOLDS = {
    "compression_ratio_threshold": 1.35,
    "logprob_threshold": -1.0,
    "no_speech_threshold": 0.6,
}
"""Values that transformers documents for Whisper. The first is of ids, not text."""

Files = Annotated[
    list[Path],
    typer.Argument(
        help="Sound files: WAV; others with the extra audio.",
        exists=True,
        dir_okay=False,
    ),
]
Model = Annotated[
    str | None,
    options.option(
        options.MODEL,
        "--model -m",
        "Speech model, as openai/whisper-tiny: folder or hub id.",
        "MODEL",
        check=early.model,
    ),
]
Language = Annotated[
    str | None,
    options.option(
        SPEECH, "--language -l", "Language of the speech. Default: detected."
    ),
]
Task = Annotated[
    Literal["transcribe", "translate"] | None,
    options.option(SPEECH, "--task", "Text in that language, or in English."),
]
Timestamps = Annotated[
    bool, options.option(SPEECH, "--timestamps", "Start and end of each segment.")
]
Prompt = Annotated[
    str,
    options.option(SPEECH, "--prompt", "Text before the first window: names, style."),
]
Fallback = Annotated[
    bool,
    options.option(
        SPEECH,
        "--fallback",
        "Higher temperatures for poor text; silence left out.",
    ),
]


@bundled
def transcribe(
    files: Files,
    *,
    model: Model = None,
    draft: options.DraftName = None,
    loading: ModelOptions,
    drafting: DraftingOptions,
    language: Language = None,
    task: Task = None,
    timestamps: Timestamps = False,
    prompt: Prompt = "",
    fallback: Fallback = False,
    temperature: options.Temperature = 0.0,
    max_tokens: options.MaxTokens = None,
    seed: options.Seed = None,
    stats: options.Statistics = True,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Transcribe sound files with a speech model as Whisper.

    The text of each file is one line on stdout; with --timestamps each segment is one.
    With --json each file is one line of JSON. Sound longer than 30 seconds is
    transcribed window by window.
    """
    from foreword.types.params import SamplingParams

    if model is None:
        raise InvalidRequest(
            "cannot transcribe: the bundled model reads no sound. Give --model "
            "openai/whisper-tiny"
        )
    limit = {} if max_tokens is None else {"max_tokens": max_tokens}
    params = SamplingParams(temperature=temperature, seed=seed, **limit)  # type: ignore[arg-type]
    llm = open_llm(model, draft, loading, drafting)
    how: dict[str, Any] = dict(
        language=language, task=task, timestamps=timestamps, prompt=prompt
    )
    if fallback:
        how |= dict(fallback=FALLBACK, **THRESHOLDS)
    with render.bar(quiet=quiet or len(files) == 1) as shown:
        bar = shown.add_task("files", total=len(files))
        for file in files:
            before = perf_counter()
            result = llm.transcribe(file, params, **how)[0]
            _write(file, result, timestamps=timestamps, as_json=as_json)
            if stats and not as_json:
                runtime.note(_summary(file, result, perf_counter() - before))
            shown.update(bar, advance=1)


def _write(
    file: Path, result: "Transcript", *, timestamps: bool, as_json: bool
) -> None:
    if as_json:
        sys.stdout.write(
            json.dumps({"file": str(file), **asdict(result)}, ensure_ascii=False) + "\n"
        )
    elif timestamps:
        for segment in result.segments:
            sys.stdout.write(
                f"[{_clock(segment.start)} --> {_clock(segment.end)}] "
                f"{segment.text.strip()}\n"
            )
    else:
        sys.stdout.write(result.text.strip() + "\n")
    sys.stdout.flush()


def _clock(seconds: float) -> str:
    return (
        f"{int(seconds // 3600):02}:{int(seconds // 60 % 60):02}:{seconds % 60:05.2f}"
    )


def _summary(file: Path, result: "Transcript", seconds: float) -> str:
    stats = result.stats
    parts = [
        file.name,
        f"{result.duration:.1f} s of sound in {seconds:.1f} s",
        f"language {result.language}" if result.language else "",
        f"{stats.tokens} tokens",
        f"{stats.tokens_per_pass:.2f} tokens per pass",
        f"{stats.acceptance:.0%} of {stats.drafted} draft tokens accepted"
        if stats.drafted
        else "no draft tokens",
        "ended by length" if result.finish_reason == "length" else "",
    ]
    return " · ".join(filter(None, parts))
