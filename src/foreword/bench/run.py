"""`foreword bench`: the same prompts for every contender, turn by turn, and a report of what came of it.

Knows the order of things; knows nothing about how a contender works.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, cast

from transformers import BatchEncoding

from foreword.bench import engines, peers
from foreword.bench.leftout import LeftOut
from foreword.bench.lineup import PLAIN_ROW, Lineup, lineup, wanted, weights
from foreword.bench.machine import machine, versions
from foreword.bench.prompts import Kind, Prompt, load
from foreword.bench.race import Race
from foreword.bench.report import Report, rows
from foreword.bench.trial import Request
from foreword.disk import writable
from foreword.errors import InvalidRequest
from foreword.model import Tokenizer
from foreword.width import policy

QUICK_PROMPTS, QUICK_TOKENS = 6, 48
USUAL = (0.0, 1.0)
"""Temperatures that are measured where none is named."""
QUICK_SECONDS = 35.0
"""No further prompt is begun after this, so that a quick run ends within a minute on a busy machine too."""
WARM_TOKENS = 16


@dataclass(frozen=True)
class Options:
    """What to measure."""

    quick: bool = False
    """Six prompts of different sources, 48 tokens each: less than a minute on two cores."""
    inflate: str | None = None
    """Enlarge the target to this shape, a name in foreword.bench.inflate.SHAPES."""
    temperatures: tuple[float, ...] = USUAL
    methods: tuple[str, ...] | None = None
    """Names of rows; None = all. Plain decoding and transformers' generate always take part."""
    width: str | None = None
    """What decides how much our methods guess, a name in foreword.width.WIDTHS; None = as where nobody says it."""
    peers: tuple[str, ...] = ()
    """Other engines that take part as well, names in foreword.bench.engines.ENGINES or its ALL."""
    prompts: Kind = "in-domain"
    limit_prompts: int | None = None
    """Use this many, spread over the sources."""
    max_tokens: int = 128
    repeats: int = 1
    """Times that every prompt is run; once when quick."""
    seed: int = 0
    dtype: str = "auto"
    target: str | None = None
    """Folder or hub id; None = the family that ships."""
    draft: str | None = None
    sources: tuple[str, ...] = ()
    """NAME=PATH: what the row of that name drafts with, where that is not the draft model."""
    plot: str | None = None
    """Write a picture of the speed-ups to this PNG file."""

    @property
    def tokens(self) -> int:
        """At most this many new tokens in each answer."""
        return min(self.max_tokens, QUICK_TOKENS) if self.quick else self.max_tokens

    @property
    def times(self) -> int:
        """How often every prompt is run."""
        return 1 if self.quick else self.repeats

    @property
    def limit(self) -> int | None:
        """At most this many prompts; None = all."""
        return QUICK_PROMPTS if self.quick and self.limit_prompts is None else self.limit_prompts


def run(options: Options, progress: Callable[[str], None] = lambda _: None) -> Report:
    """Measure every contender on every prompt, interleaved, after a warm-up.

    `progress` gets a line now and then, also of each contender that fails, which is left out. Raises InvalidRequest,
    UnknownMethod or ModelError before any measuring.
    """
    check(options)
    started = perf_counter()
    names = wanted(options.methods, options.quick, options.peers)
    used = versions() | engines.versions(names)
    source = weights(options.target, options.draft, options.dtype, options.inflate)
    source = replace(source, sources=sources(options.sources, names))
    chosen = spread(load(options.prompts), options.limit)
    progress(f"loading {source.name}")
    out = LeftOut(progress, needed=PLAIN_ROW)
    entrants = lineup(source, names, out, progress, policy(options.width))
    requests = _requests(entrants, chosen, options)
    race = Race(entrants, out)
    progress("warming up")
    for request in requests[chosen[0].id]:
        # A seed that no request has: nobody may have seen an answer before it is measured.
        race.run(replace(request, seed=options.seed + len(chosen), max_tokens=WARM_TOKENS), 0, counts=False)
    measured: list[str] = []
    for turn, (repeat, prompt) in enumerate((repeat, prompt) for repeat in range(options.times) for prompt in chosen):
        if options.quick and measured and perf_counter() - started > QUICK_SECONDS:
            progress(f"this machine is busy or slow: a quick run ends after {turn} of {len(chosen)} prompts")
            break
        for request in requests[prompt.id]:
            # Over the repeats too, each contender should come at every place of the order.
            race.run(request, turn + repeat)
        measured.append(prompt.id)
        progress(f"{turn + 1} of {options.times * len(chosen)}: {prompt.id}")
    settings = _settings(options, names, measured)
    report = Report(machine(), used, source.name, options.seed, rows(race.results), settings, out.reasons)
    if options.plot:
        from foreword.bench.plot import draw  # needs matplotlib, which few installations have

        draw(report, Path(options.plot))
    return report


def sources(given: tuple[str, ...], names: tuple[str, ...]) -> dict[str, str]:
    """What each row drafts with, by its name. Raises InvalidRequest for what names no row."""
    found: dict[str, str] = {}
    for one in given:
        name, _, path = one.partition("=")
        if name not in names or not path:
            raise InvalidRequest(f"a source is NAME=PATH, NAME being a row that is measured; got {one!r}")
        found[name] = path
    return found


def spread(prompts: list[Prompt], limit: int | None) -> list[Prompt]:
    """At most `limit` prompts, evenly from the whole list, which is ordered by source."""
    if limit is None or limit >= len(prompts):
        return prompts
    return [prompts[place * len(prompts) // limit] for place in range(limit)]


def _requests(entrants: Lineup, prompts: list[Prompt], options: Options) -> dict[str, list[Request]]:
    """For each prompt one request at every temperature, with a seed of the prompt's own."""
    requests: dict[str, list[Request]] = {}
    for place, prompt in enumerate(prompts):
        tokens, seed = rendered(prompt, entrants.tokenizer, entrants.context, options), options.seed + place
        requests[prompt.id] = [Request(prompt.id, tokens, heat, seed, options.tokens) for heat in options.temperatures]
    return requests


def rendered(prompt: Prompt, tokenizer: Tokenizer, context: int, options: Options) -> tuple[int, ...]:
    """Token ids of a prompt. Raises InvalidRequest where the answer after it exceeds the target's context."""
    tokens = render(tokenizer, prompt)
    if len(tokens) + options.tokens > context:
        raise InvalidRequest(
            f"{prompt.id} has {len(tokens)} tokens, and max_tokens={options.tokens} after it exceeds the target's "
            f"context of {context}; lower max_tokens"
        )
    return tokens


def render(tokenizer: Tokenizer, prompt: Prompt) -> tuple[int, ...]:
    """The conversation in the target's chat template; without one, its turns as paragraphs."""
    turns = [dict(message) for message in prompt.messages]
    if tokenizer.chat_template:
        ids = cast(BatchEncoding, tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True))
    else:
        ids = tokenizer("\n\n".join(turn["content"] for turn in turns))
    return tuple(cast(list[int], ids["input_ids"]))


def check(options: Options) -> None:
    """Raise InvalidRequest for what no run can measure, UnknownMethod for a width that does not exist."""
    policy(options.width)
    for name in ("max_tokens", "repeats", "limit_prompts"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InvalidRequest(f"{name} must be at least 1, got {value}")
    if not options.temperatures or min(options.temperatures) < 0:
        raise InvalidRequest(f"temperatures must be one or more numbers from 0 on, got {options.temperatures}")
    if options.plot is None:
        return
    if find_spec("matplotlib") is None:
        raise InvalidRequest("a plot needs matplotlib; install it with: pip install 'foreword[bench]'")
    writable(Path(options.plot))


def _settings(options: Options, names: tuple[str, ...], measured: list[str]) -> dict[str, Any]:
    """All that a reader needs to repeat the run."""
    used = {**asdict(options), "max_tokens": options.tokens, "repeats": options.times}
    used["prompt_ids"] = list(dict.fromkeys(measured))
    del used["seed"], used["plot"]
    return {**used, "peers": peers.settings() | engines.settings(names)}
