"""The benchmark behind `foreword bench`: same prompts by entry, interleaved."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import product
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, cast

from transformers import BatchEncoding

from foreword.budget import policy
from foreword.draft import default_method
from foreword.errors import InvalidRequest
from foreword.files import check_writable
from foreword.model import Tokenizer
from foreword.native.machine import machine, versions
from foreword.prompts import Prompt, load
from foreword.registry import DEFAULT_METHOD, HEAD_METHODS
from foreword_lab.bench.exclusions import Exclusions
from foreword_lab.bench.lineup import PLAIN_ROW, Lineup, Weights, lineup, weights
from foreword_lab.bench.peers import hf, registry
from foreword_lab.bench.race import Race
from foreword_lab.bench.records import BenchRequest
from foreword_lab.bench.report import Report, by_source, regrets, rows
from foreword_lab.bench.row_names import row_names

QUICK_PROMPTS, QUICK_TOKENS = 6, 48
DEFAULT_TEMPERATURES = (0.0, 1.0)
"""Temperatures measured by default."""
QUICK_SECONDS = 35.0
"""Seconds after which a quick run starts no prompt: it ends within a minute."""
WARM_TOKENS = 16
"""Tokens generated per entry and temperature before measuring."""


@dataclass(frozen=True)
class Options:
    """Options of a benchmark."""

    quick: bool = False
    """Six prompts of different sources, 48 tokens each: under a minute on two cores."""
    inflate: str | None = None
    """Enlarge the target to this shape, a name in foreword_lab.bench.inflate.SHAPES."""
    weights: str | None = None
    """Form of the target's linear weights, as of `foreword.LLM`; other engines but
    transformers get as few bits.
    """
    temperatures: tuple[float, ...] = DEFAULT_TEMPERATURES
    methods: tuple[str, ...] | None = None
    """Names of rows; None = the default ones.

    Plain decoding is always measured, and transformers' generate but for a GGUF file.
    """
    budget: str | None = None
    """Draft budget of our methods, a name in foreword.registry.BUDGETS, or None."""
    peers: tuple[str, ...] = ()
    """Other engines to measure as baselines, names in
    foreword_lab.bench.peers.registry.ENGINES or its ALL.
    """
    prompts: str = "in-domain"
    """Name of a set, or a file; see foreword.prompts."""
    limit_prompts: int | None = None
    """Number of prompts, spread over the sources; None = all."""
    max_tokens: int = 128
    repeats: int = 1
    """Runs of every prompt; one if quick."""
    seed: int = 0
    dtype: str = "auto"
    target: str | None = None
    """Folder or hub id; None = the bundled target."""
    draft: str | None = None
    device: str = "cpu"
    """Where our methods and transformers run; other engines run on the CPU."""
    trust_remote_code: bool = False
    """Let code of the models' own folders run."""
    offload_folder: str | None = None
    """Folder for the target's packed weights, as of `foreword.LLM`; other engines are
    not measured then.
    """
    sources: tuple[str, ...] = ()
    """NAME=PATH: what the row NAME drafts with instead of the draft model."""
    plot: str | None = None
    """Write a picture of the speed-ups to this PNG file."""

    @property
    def tokens(self) -> int:
        """Maximum number of new tokens in each answer."""
        return min(self.max_tokens, QUICK_TOKENS) if self.quick else self.max_tokens

    @property
    def times(self) -> int:
        """Number of runs of every prompt."""
        return 1 if self.quick else self.repeats

    @property
    def limit(self) -> int | None:
        """Maximum number of prompts; None = all."""
        return (
            QUICK_PROMPTS
            if self.quick and self.limit_prompts is None
            else self.limit_prompts
        )


def run(options: Options, progress: Callable[[str], None] = lambda _: None) -> Report:
    """Measure every entry on every prompt, interleaved, after a warm-up.

    `progress` gets status lines, also one for each entry that fails and is excluded.
    Raises InvalidRequest, UnknownMethod or ModelError before any measuring.
    """
    options = with_head(options)
    check(options)
    started = perf_counter()
    selection = options.methods, options.quick, options.peers
    names = row_names(*selection, options.target)
    used = versions() | registry.versions(names)
    source = replace(measured_weights(options, names), offload=options.offload_folder)
    chosen = spread(load(options.prompts), options.limit)
    progress(f"loading {source.name}")
    out = Exclusions(progress, needed=PLAIN_ROW)
    entrants = lineup(source, names, out, progress, policy(options.budget))
    requests = _requests(entrants, chosen, options)
    race = Race(entrants, out)
    progress("warming up")
    _warm_up(race, requests[chosen[0].id], options.seed + len(chosen))
    ends = started + QUICK_SECONDS if options.quick else inf
    measured = _measure(race, requests, options.times, ends, progress)
    settings = {**_settings(options, names, measured), "held": source.held(names)}
    report = Report(
        machine(source.device),
        used,
        source.name,
        options.seed,
        rows(race.results, entrants.loads),
        settings,
        out.reasons,
        regrets(race.results),
        by_source(race.results),
    )
    if options.plot:
        # needs matplotlib, which few installations have
        from foreword_lab.bench.plot import draw

        draw(report, Path(options.plot))
    return report


def with_head(options: Options) -> Options:
    """Return options in which a trained head, given as the draft model, is the source
    of the row of its own method, which is measured too.

    Raises ModelError for a kind of head that no method runs.
    """
    name = default_method(options.draft) if options.draft is not None else None
    if name not in HEAD_METHODS.values():
        return options
    methods = dict.fromkeys((*(options.methods or (DEFAULT_METHOD,)), name))
    paths = (f"{name}={options.draft}", *options.sources)
    return replace(options, draft=None, methods=tuple(methods), sources=paths)


def measured_weights(options: Options, names: tuple[str, ...]) -> Weights:
    """Return the models of the options, with what each of these rows drafts with."""
    source = weights(
        options.target,
        options.draft,
        options.dtype,
        options.inflate,
        trusted=options.trust_remote_code,
        device=options.device,
    )
    by_row = sources(options.sources, names)
    return replace(source, sources=by_row, form=options.weights)


def sources(values: tuple[str, ...], names: tuple[str, ...]) -> dict[str, str]:
    """Return row -> path of NAME=PATH. Raises InvalidRequest for no row."""
    by_row: dict[str, str] = {}
    for value in values:
        name, _, path = value.partition("=")
        if name not in names or not path:
            raise InvalidRequest(
                f"cannot use source {value!r}: it must be NAME=PATH, where NAME is a "
                "measured row"
            )
        by_row[name] = path
    return by_row


def spread(prompts: list[Prompt], limit: int | None) -> list[Prompt]:
    """Return at most `limit` prompts, evenly spaced in a list ordered by source."""
    if limit is None or limit >= len(prompts):
        return prompts
    return [prompts[place * len(prompts) // limit] for place in range(limit)]


def _requests(
    entrants: Lineup, prompts: list[Prompt], options: Options
) -> dict[str, list[BenchRequest]]:
    """Return prompt id -> one request at every temperature, with a seed per prompt."""
    requests: dict[str, list[BenchRequest]] = {}
    for number, prompt in enumerate(prompts):
        tokens = rendered(prompt, entrants.tokenizer, entrants.context, options)
        seed = options.seed + number
        requests[prompt.id] = [
            BenchRequest(prompt.id, tokens, heat, seed, options.tokens)
            for heat in options.temperatures
        ]
    return requests


def _warm_up(race: Race, requests: list[BenchRequest], seed: int) -> None:
    """Run short answers that are not counted.

    No other request has their seed: a drafter must not have seen an answer before it is
    measured.
    """
    for request in requests:
        warm = replace(request, seed=seed, max_tokens=WARM_TOKENS)
        race.run(warm, 0, counts=False)


def _measure(
    race: Race,
    requests: dict[str, list[BenchRequest]],
    repeats: int,
    ends: float,
    progress: Callable[[str], None],
) -> list[str]:
    """Run the requests of every prompt, `repeats` times; return the measured prompts.

    No prompt but the first is started after `ends`.
    """
    measured: list[str] = []
    for turn, (repeat, prompt) in enumerate(product(range(repeats), requests)):
        if measured and perf_counter() > ends:
            progress(
                f"machine busy or slow: quick run stopped after {turn} of "
                f"{len(requests)} prompts"
            )
            break
        for request in requests[prompt]:
            # + repeat: over the repeats too, each entry should take every position in
            # the order.
            race.run(request, turn + repeat)
        measured.append(prompt)
        progress(f"{turn + 1} of {repeats * len(requests)}: {prompt}")
    return measured


def rendered(
    prompt: Prompt, tokenizer: Tokenizer, context: int, options: Options
) -> tuple[int, ...]:
    """Return a prompt's ids. InvalidRequest if the answer exceeds the context."""
    tokens = render(tokenizer, prompt)
    if len(tokens) + options.tokens > context:
        raise InvalidRequest(
            f"cannot run {prompt.id}: {len(tokens)} tokens and "
            f"max_tokens={options.tokens} exceed the target's context "
            f"of {context}. Lower max_tokens"
        )
    return tokens


def render(tokenizer: Tokenizer, prompt: Prompt) -> tuple[int, ...]:
    """Return token ids of the conversation in the target's chat template; without one,
    turns become paragraphs.
    """
    turns = [dict(message) for message in prompt.messages]
    if tokenizer.chat_template:
        ids = cast(
            BatchEncoding,
            tokenizer.apply_chat_template(
                turns, add_generation_prompt=True, return_dict=True
            ),
        )
    else:
        ids = tokenizer("\n\n".join(turn["content"] for turn in turns))
    return tuple(cast(list[int], ids["input_ids"]))


def check(options: Options) -> None:
    """Raise InvalidRequest for invalid options, UnknownMethod for an unknown budget."""
    policy(options.budget)
    if options.offload_folder is not None and options.inflate is not None:
        raise InvalidRequest(
            "cannot offload an enlarged target: it is made in memory. Give the folder "
            "of one of recipes/inflate.py"
        )
    for name in ("max_tokens", "repeats", "limit_prompts"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InvalidRequest(
                f"cannot run the benchmark: '{name}' must be at least 1, got {value}"
            )
    if not options.temperatures or min(options.temperatures) < 0:
        raise InvalidRequest(
            "cannot run the benchmark: 'temperatures' must be one or more numbers >= "
            f"0, got {options.temperatures}"
        )
    if options.plot is None:
        return
    if find_spec("matplotlib") is None:
        raise InvalidRequest(
            "cannot plot: matplotlib is not installed. Run: pip install "
            "'foreword[plots]'"
        )
    check_writable(Path(options.plot))


def _settings(
    options: Options, names: tuple[str, ...], measured: list[str]
) -> dict[str, Any]:
    """Return the settings needed to repeat the run."""
    used = {**asdict(options), "max_tokens": options.tokens, "repeats": options.times}
    used["prompt_ids"] = list(dict.fromkeys(measured))
    del used["seed"], used["plot"]
    return {**used, "peers": hf.settings() | registry.settings(names)}
