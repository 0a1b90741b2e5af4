"""Runs requests through an engine; keeps the shipped pair of models loaded once."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from itertools import chain, count
from pathlib import Path
from typing import Any

import pytest
import torch

import starter
from folders import common
from foreword import LLM
from foreword.api.detokenizer import Detokenizer
from foreword.budget import DraftBudget, FixedBudget
from foreword.draft import method
from foreword.draft.base import Drafter
from foreword.draft.cross_vocab.slem import StringMatchDrafter
from foreword.draft.cross_vocab.tli import IntersectionDrafter
from foreword.draft.ensemble.auto import AutoDrafter
from foreword.draft.ensemble.cascade import CascadeDrafter
from foreword.draft.lm import LanguageModelDrafter
from foreword.draft.lookup.datastore import Datastore, build
from foreword.draft.lookup.lookahead import LookaheadDrafter
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.draft.lookup.predicted import PredictedDrafter
from foreword.draft.lookup.recycle import RecyclingDrafter
from foreword.draft.lookup.retrieval import RetrievalDrafter
from foreword.draft.lookup.suffix import AnswerStore, SuffixDrafter
from foreword.draft.none import NoDrafter
from foreword.draft.self_speculative.base import SPARE
from foreword.draft.self_speculative.layers import LayersDrafter
from foreword.draft.self_speculative.quantized import QuantizedDrafter
from foreword.engine import Engine
from foreword.engine.scheduler import Scheduler
from foreword.errors import InvalidRequest
from foreword.files import atomic_folder
from foreword.model import Model, Read, load_tokenizer
from foreword.model.skip import LayerSkip
from foreword.model.view import view
from foreword.native.cpu import fast_bfloat16
from foreword.native.forward import library
from foreword.registry import PLAIN
from foreword.structured.compiler import Grammars
from foreword.types import Delta, Request, SamplingParams, TokenLogprob
from foreword.verify import rule as find_rule
from foreword_train import registry
from other_tokenizers import NEAR, pair
from trainables import trained

TEXTS = (
    "The capital of France is",
    (
        "Once upon a time there was a little girl who lived near a forest. One day the "
        "little girl"
    ),
    "one two three four five one two three four five one two three",
    "Rivers carry water from the mountains to the sea. " * 3 + "Rivers carry",
    "Q: What is the largest planet?\nA:",
)
"""Prompts of different lengths; some repeat themselves, to be looked up."""
SAID = (
    (
        "The capital of France is France. France is France. France is the capital of "
        "Spain."
    ),
    (
        "One day the little girl who lived near a forest. One day the little girl had "
        "the kidney had the blood"
    ),
    (
        "one two three four five four four five five five two three four four four "
        "five five"
    ),
    "Rivers carry water from the sea. The sea will be used to make the sea.",
    "It is a small planet. The largest planet is a small planet.",
)
"""About what the target answers, as texts for drafters that look things up."""
DTYPE = "bfloat16" if fast_bfloat16() else "float32"
"""The dtype in which the bundled models are fastest, for tests of other things."""
_ids = count(1)


@cache
def target(dtype: str = "float32") -> Model:
    return Model.load(starter.target(), dtype=dtype)


@cache
def draft(dtype: str = "float32") -> Model:
    return Model.load(starter.draft(), dtype=dtype)


@cache
def tokenizer():
    return load_tokenizer(starter.target())


@cache
def grammars() -> Grammars:
    return Grammars(tokenizer(), target().vocab, target().eos)


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tokenizer()(text)["input_ids"]) for text in TEXTS)


def of_length(length: int, temperature: float = 0.0, **more: Any) -> SamplingParams:
    """Return the parameters of a text of exactly so many tokens."""
    return SamplingParams(
        temperature=temperature, max_tokens=length, ignore_eos=True, **more
    )


@dataclass(frozen=True)
class Case:
    prompt: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)

    def request(self, eos: frozenset[int]) -> Request:
        tokens, params = list(self.prompt), self.params
        stops = (params.stop, params.skip_special_tokens)
        reader = Detokenizer(tokenizer(), [*tokens], *stops)
        length, seed = len(tokens), params.seed or 0
        sequence = Request(next(_ids), tokens, length, params, seed, eos, reader)
        if self.params.structured:
            compiled = grammars().compiled(self.params)
            assert compiled is not None
            sequence.grammar = grammars().answer(compiled, self.params, sequence.prompt)
        return sequence


@dataclass(frozen=True)
class Answer:
    request: Request
    deltas: list[Delta]

    @property
    def tokens(self) -> list[int]:
        return self.request.tokens[self.request.prompt :]

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return [logprob for delta in self.deltas for logprob in delta.logprobs]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def said(self) -> tuple[list[int], str, str | None]:
        """All that must not depend on the drafter."""
        return self.tokens, self.text, self.request.finish_reason


def engine(
    model: Model,
    drafter: Drafter | None = None,
    budget: DraftBudget | int = 0,
    *,
    rule: str = "match",
    slots: int = 8,
    chunk: int = 512,
) -> Engine:
    budget = FixedBudget(budget) if isinstance(budget, int) else budget
    scheduler = Scheduler(slots=slots, chunk=chunk)
    return Engine(model, drafter or NoDrafter(), find_rule(rule), budget, scheduler)


def finish(loop: Engine, requests: Sequence[Case]) -> list[Answer]:
    """Run the requests together to their end."""
    answers = [Answer(request.request(loop.target.eos), []) for request in requests]
    by_id = {answer.request.id: answer for answer in answers}
    for answer in answers:
        loop.add(answer.request)
    while not loop.idle:
        for delta in loop.step():
            by_id[delta.id].deltas.append(delta)
    return answers


def at_both_heats(length: int) -> list[Case]:
    """Return every prompt at the temperatures 0 and 1."""
    settings = [of_length(length, heat, seed=5) for heat in (0.0, 1.0)]
    return [Case(prompt, params) for prompt in prompts() for params in settings]


def outputs(answers: Sequence[Answer]) -> list[tuple[list[int], str, str | None]]:
    """Return what of each answer must not depend on the drafter."""
    return [answer.said for answer in answers]


def count_accepted(answers: Sequence[Answer]) -> int:
    """Return how many draft tokens of all answers were accepted."""
    return sum(answer.request.stats.accepted for answer in answers)


def emptied(model: Model) -> None:
    """Close what earlier tests left open in a shared model; forget its prefixes."""
    for number in [*model.backend.pool._tables]:
        model.close(number)
    model.backend.pool.prefixes.clear()


def pool_bytes(pool: Any) -> int:
    """Return the memory of a pool's keys and values, in C or in torch."""
    parts = getattr(pool, "_storage", None) or [*chain(*pool._layers.values())]
    return sum(part.nbytes for part in parts)


def plain(model: Model, requests: Sequence[Case]) -> list[Answer]:
    """Decode plainly, one request at a time."""
    return [finish(engine(model), [request])[0] for request in requests]


@cache
def datastore() -> Datastore:
    """TEXTS and SAID as a corpus."""
    folder = common[0] / "store"
    with suppress(InvalidRequest):  # it may be there already
        build([("prompts", text) for text in (*TEXTS, *SAID)], tokenizer(), folder)
    return Datastore(folder, tokenizer())


def drafter(name: str, dtype: str = "float32") -> Drafter:
    """A drafter that ships, over the draft model of the family."""
    if name in TRAINED:
        return served(TRAINED[name], dtype)
    made = {
        "none": NoDrafter,
        "ngram": NgramDrafter,
        "suffix": lambda: SuffixDrafter(AnswerStore(target(dtype).vocab)),
        "predicted": PredictedDrafter,
        "recycle": RecyclingDrafter,
        "lookahead": LookaheadDrafter,
        "lm": lambda: LanguageModelDrafter(draft(dtype)),
        "tli": lambda: IntersectionDrafter(pair(NEAR, dtype)),
        "slem": lambda: StringMatchDrafter(pair(NEAR, dtype)),
        "retrieval": lambda: RetrievalDrafter(datastore()),
        "layers": lambda: layers(dtype),
        "quantized": lambda: quantized(dtype),
        "auto": lambda: AutoDrafter(
            [LanguageModelDrafter(draft(dtype)), NgramDrafter()]
        ),
        "cascade": lambda: CascadeDrafter(
            [NgramDrafter(), LanguageModelDrafter(draft(dtype))]
        ),
    }
    return made[name]()


TRAINED: dict[str, registry.TrainOptions] = {
    "pard": registry.PardOptions(draft=str(starter.draft()), depth=4),
    "eagle": registry.EagleOptions(unroll=2, draft_vocab=400),
    "mtp": registry.MtpOptions(unroll=2),
    "dflash": registry.DFlashOptions(layers=1, block=5, anchors=24),
    "dspark": registry.DSparkOptions(layers=1, block=4, anchors=24, rank=16),
    "medusa": registry.MedusaOptions(),
}
"""Drafters that are trained for the tests."""


@cache
def sayings() -> tuple[tuple[int, ...], ...]:
    """The prompts with the target's answers, at temperature 0 and above."""
    options = dict(seed=3, max_tokens=32, ignore_eos=True)
    asked = [
        Case(prompt, SamplingParams(temperature=heat, **options))
        for prompt in prompts()
        for heat in (0.0, 0.7)
    ]
    answers = finish(engine(target()), asked)
    return tuple(tuple(answer.request.tokens) for answer in answers)


@cache
def shelf(options: registry.TrainOptions) -> Path:
    """Return the folder of a drafter with these options, trained once for all."""
    place = common[0] / blake2b(repr(options).encode(), digest_size=8).hexdigest()
    if not place.exists():
        # another process may have been faster
        with suppress(InvalidRequest), atomic_folder(place) as begun:
            trained(options, sayings()[::2]).save(begun)
    return place


def served(options: registry.TrainOptions, dtype: str) -> Drafter:
    """Load the trained drafter by its method."""
    return method(options.method).load(shelf(options), target(dtype), tokenizer())


def layers(dtype: str) -> Drafter:
    """The target without two MLPs, in its own memory in bfloat16, or the drafter's."""
    spare = SPARE if dtype == "bfloat16" else 0
    return LayersDrafter(target(dtype), LayerSkip(mlp=frozenset({1, 2})), spare=spare)


def quantized(dtype: str) -> Drafter:
    """The target in 4 bits, likewise; for float32 its bfloat16 twin."""
    if isinstance(library(), str):
        pytest.skip(f"no native kernel here: {library()}")
    shares = dtype == "bfloat16"
    twin = view(target("bfloat16"), bits=4, spare=SPARE if shares else 0)
    return QuantizedDrafter(twin, shares=shares)


def distribution(model: Model, tokens: Sequence[int]) -> torch.Tensor:
    """The model's own logits after every token of a text, in one forward."""
    model.open(-7, len(tokens))
    try:
        return model.read([Read(-7, 0, list(tokens), keep=len(tokens))]).float()
    finally:
        model.close(-7)


def check_drafts(
    llm: LLM, method: str, temperature: float, seed: int = 7, tokens: int = 24
) -> None:
    """Assert that drafts of a method are accepted, and change no text."""
    shared = dict(temperature=temperature, seed=seed, max_tokens=tokens)
    texts = [list(prompt) for prompt in prompts()[:3]]
    plain, drafted = (
        llm.generate(texts, SamplingParams(**shared, ignore_eos=True, **how))
        for how in (dict(method=PLAIN), dict(method=method, nodes=4))
    )
    assert [one.tokens for one in drafted] == [one.tokens for one in plain]
    assert all(one.undrafted is None for one in drafted)
    assert sum(one.stats.accepted for one in drafted) > 0
