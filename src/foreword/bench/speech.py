"""Speech benchmark: the sounds of a folder, transcribed by every method and by other
programs, in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any
from warnings import catch_warnings, filterwarnings

from rich.markup import escape

from foreword.api.llm import LLM
from foreword.bench.exclusions import Exclusions, left_out
from foreword.bench.lineup import Weights, weights
from foreword.bench.machine import machine, versions
from foreword.bench.peers import hf
from foreword.bench.peers.engines import ALL
from foreword.bench.peers.transcribers import (
    FASTER_WHISPER,
    NAMES,
    Ask,
    Transformers,
    Trial,
    assistant,
    converted,
    faster_whisper,
)
from foreword.bench.race import REST, rotated
from foreword.bench.records import EntryFailed
from foreword.bench.run import Options, check, sources
from foreword.errors import InvalidRequest
from foreword.registry import DEFAULT_METHOD, DEFAULT_WITH_DRAFT, PLAIN
from foreword.speech.audio import samples
from foreword.speech.features import FeatureReader
from foreword.tables import Column, Table, figure, name_column, share
from foreword.types import SamplingParams

SOUNDS = (".wav", ".flac")
"""Names of sound files end so."""
SETTINGS = (
    "temperatures",
    "budget",
    "peers",
    "repeats",
    "seed",
    "dtype",
    "draft",
    "sources",
)
"""Options that apply to sounds, and are written into the report."""
DEFAULT_METHODS = (DEFAULT_METHOD, "suffix")
"""Methods measured by default; with a draft model that of draft models too."""
Runs = Callable[[Ask], Trial]
Results = dict[tuple[float, str], dict[str, list[Trial]]]
"""(temperature, row) -> file -> its trials."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row at one temperature.

    None where a figure does not apply or is not visible from outside.
    """

    name: str
    temperature: float
    real_time_factor: float
    """Seconds of computing per second of sound, of the medians of every file."""
    over_plain: float
    """Speed over plain decoding."""
    acceptance: float | None
    """Accepted / scored draft tokens."""
    tokens_per_pass: float | None
    same_text: bool | None
    """Whether every text equals plain decoding's; None if it samples with another
    noise.
    """


@dataclass(frozen=True, slots=True)
class SpeechReport:
    """A finished run."""

    machine: dict[str, Any]
    versions: dict[str, str]
    target: str
    settings: dict[str, Any]
    sounds: dict[str, float]
    """File -> seconds of sound."""
    rows: tuple[Row, ...]
    exclusions: dict[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dicts."""
        return asdict(self)

    def table(self) -> Table[Row]:
        """Return a table for the terminal."""
        seconds = f"{len(self.sounds)} sounds of {sum(self.sounds.values()):.1f} s"
        same = {None: "other draw", True: "yes", False: "NO"}
        return Table(
            self.rows,
            (
                name_column("method", lambda row: row.name),
                Column("T", lambda row: f"{row.temperature:g}"),
                Column("real-time factor", lambda row: figure(row.real_time_factor, 3)),
                Column("× plain", lambda row: figure(row.over_plain)),
                Column("acceptance", lambda row: share(row.acceptance)),
                Column("tokens/pass", lambda row: figure(row.tokens_per_pass)),
                Column("same text", lambda row: same[row.same_text]),
            ),
            title=f"{self.target}, {seconds}",
            caption=escape(
                "real-time factor: seconds of computing per second of sound"
                + left_out(self.exclusions)
            ),
        )


def transcribing(
    options: Options,
    folder: Path,
    max_tokens: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> SpeechReport:
    """Transcribe every sound of a folder by every row in turn; the order rotates.

    Raises InvalidRequest, UnknownMethod or ModelError before any measuring. A row that
    fails is excluded.
    """
    _check(options)
    files = sound_files(folder)
    names = _names(options)
    source = weights(
        options.target,
        options.draft,
        options.dtype,
        None,
        trusted=options.trust_remote_code,
    )
    source = replace(source, sources=sources(options.sources, names))
    progress(f"loading {source.name}")
    llm, out = _load(source, options), Exclusions(progress, needed=PLAIN)
    rate = FeatureReader(llm.target).rate
    sounds = {file.name: samples(file, rate) for file in files}
    entries = _own(llm, names, out) | _others(source, options, out)

    def ask(place: int, name: str, heat: float) -> Ask:
        seed = options.seed + place
        return Ask(name, sounds[name], rate, heat, seed, max_tokens, "")

    asks = {
        heat: [ask(place, name, heat) for place, name in enumerate(sounds)]
        for heat in options.temperatures
    }
    results = _measure(entries, asks, options.repeats, out, progress)
    seconds = {name: len(sound) / rate for name, sound in sounds.items()}
    used = {name: getattr(options, name) for name in SETTINGS} | {
        "max_tokens": max_tokens,
        "methods": names,
    }
    return SpeechReport(
        machine(),
        versions(),
        source.name,
        used,
        seconds,
        _rows(results, seconds),
        out.reasons,
    )


def _check(options: Options) -> None:
    check(options)
    if options.target is None:
        raise InvalidRequest(
            "cannot measure speech: the bundled model reads no sound. Give --model "
            "openai/whisper-tiny"
        )
    if wrong := [name for name in options.peers if name not in (FASTER_WHISPER, ALL)]:
        raise InvalidRequest(
            f"cannot measure {wrong[0]!r}: it transcribes no sound. Choose "
            f"{FASTER_WHISPER}"
        )


def _names(options: Options) -> tuple[str, ...]:
    """Return plain decoding and the methods, by default those without a draft model
    unless one was given.
    """
    by_default = (
        (*DEFAULT_METHODS, DEFAULT_WITH_DRAFT) if options.draft else DEFAULT_METHODS
    )
    return tuple(dict.fromkeys((PLAIN, *(options.methods or by_default))))


def sound_files(folder: Path) -> list[Path]:
    """Return the sound files of a folder, sorted.

    Raises InvalidRequest if there are none.
    """
    kinds = " or ".join(SOUNDS)
    if not folder.is_dir():
        raise InvalidRequest(
            f"cannot read {folder}: no such folder exists. Give one with {kinds} files"
        )
    files = sorted(folder.iterdir())
    found = [file for file in files if file.suffix.lower() in SOUNDS and file.is_file()]
    if not found:
        why = f"none of its {len(files)} files is {kinds}" if files else "it is empty"
        raise InvalidRequest(
            f"cannot measure the sounds of {folder}: {why}. Put {kinds} files there"
        )
    return found


def _load(source: Weights, options: Options) -> LLM:
    """Return the target, whose requests name their methods.

    Raises InvalidRequest if it reads no sound.
    """
    drafts = ({DEFAULT_WITH_DRAFT: source.draft} if source.draft else {}) | dict(
        source.sources
    )
    llm = LLM(
        source.target,
        draft=drafts or None,
        method=PLAIN,
        budget=options.budget,
        dtype=str(source.dtype).removeprefix("torch."),
        device="cpu",
        slots=1,
        trust_remote_code=source.trusted,
    )
    if llm.target.seq2seq is None or not llm.target.seq2seq.sound:
        raise InvalidRequest(
            f"cannot measure {source.name}: it reads no sound. Give --model a speech "
            "model as Whisper"
        )
    return llm


def _own(llm: LLM, names: tuple[str, ...], out: Exclusions) -> dict[str, Runs]:
    """Return our rows, with their drafters loaded."""
    entries: dict[str, Runs] = {}
    for name in names:
        with out.unless(name), catch_warnings():
            # its row would be plain decoding once more
            filterwarnings("error", "cannot load the drafter")
            llm.session.speculator(SamplingParams(method=name))
            entries[name] = partial(_ours, llm, name)
    return entries


def _others(source: Weights, options: Options, out: Exclusions) -> dict[str, Runs]:
    """Return the rows of transformers, which share one copy of the weights, and of the
    peers that were named.
    """
    entries: dict[str, Runs] = {}
    with out.unless(hf.GENERATE):
        target = Transformers(source)
        entries[hf.GENERATE] = target.run
        if source.draft is not None:
            with out.unless(hf.ASSISTED):
                entries[hf.ASSISTED] = partial(
                    target.run, draft=assistant(source.read(source.draft))
                )
    if options.peers:
        with out.unless(FASTER_WHISPER):
            entries[FASTER_WHISPER] = partial(faster_whisper, converted(source))
    return entries


def _measure(
    entries: dict[str, Runs],
    asks: dict[float, list[Ask]],
    repeats: int,
    out: Exclusions,
    progress: Callable[[str], None],
) -> Results:
    results: Results = {}
    names = list(entries)
    for heat, own in asks.items():
        shortest = min(own, key=lambda ask: len(ask.samples))
        warm = replace(shortest, seed=shortest.seed + len(own), tenant="warm")
        turns = [
            replace(ask, tenant=f"{heat:g} {repeat}")
            for repeat in range(repeats)
            for ask in own
        ]
        for turn, ask in enumerate([warm, *turns]):
            for name in rotated(names, turn):
                if name in out:
                    continue
                sleep(REST)
                with out.unless(name):
                    trial = entries[name](ask)
                    if turn:  # the first is a warm-up
                        results.setdefault((heat, name), {}).setdefault(
                            ask.name, []
                        ).append(trial)
            if turn:
                progress(f"temperature {heat:g}, {turn} of {len(turns)}: {ask.name}")
    kept = [name for name in names if name not in out]
    return {(heat, name): results[heat, name] for heat in asks for name in kept}


def _rows(results: Results, sounds: dict[str, float]) -> tuple[Row, ...]:
    return tuple(
        _row(heat, name, trials, results[heat, PLAIN], sum(sounds.values()))
        for (heat, name), trials in results.items()
    )


def _row(
    heat: float,
    name: str,
    own: dict[str, list[Trial]],
    plain: dict[str, list[Trial]],
    sound: float,
) -> Row:
    pairs = [(trial, plain[file][0]) for file in own for trial in own[file]]
    same = all(trial.same(reference) for trial, reference in pairs)
    # Equal texts are equally many tokens, also where they cannot be counted.
    emitted = sum(
        trial.emitted or (reference.emitted if same else 0)
        for trial, reference in pairs
    )
    passes, drafted, accepted = (
        sum(getattr(trial, count) for trial, _ in pairs)
        for count in ("passes", "drafted", "accepted")
    )
    return Row(
        name,
        heat,
        real_time_factor=_seconds(own) / sound,
        over_plain=_seconds(plain) / _seconds(own),
        acceptance=accepted / drafted if drafted else None,
        tokens_per_pass=emitted / passes if emitted and passes else None,
        same_text=None if heat > 0 and name in NAMES else same,
    )


def _seconds(trials: dict[str, list[Trial]]) -> float:
    return sum(median(trial.seconds for trial in file) for file in trials.values())


def _ours(llm: LLM, method: str, ask: Ask) -> Trial:
    params = SamplingParams(
        temperature=ask.temperature,
        seed=ask.seed,
        max_tokens=ask.max_tokens or llm.target.context,
        method=method,
        tenant=f"{method} {ask.tenant}",
    )
    started = perf_counter()
    found = llm.transcribe((ask.samples, ask.rate), params)[0]
    seconds = perf_counter() - started
    if found.undrafted is not None:
        raise EntryFailed(found.undrafted)
    stats = found.stats
    return Trial(
        found.text,
        tuple(found.tokens),
        seconds,
        stats.tokens,
        stats.rounds,
        stats.drafted,
        stats.accepted,
    )
