"""Runs requests through an engine, and keeps the shipped pair of models loaded once. Test code; asserts nothing."""

from collections.abc import Sequence as List
from dataclasses import dataclass, field
from functools import cache
from itertools import count

import torch

from foreword import family
from foreword.draft.base import Drafter
from foreword.draft.lm import LanguageModelDrafter
from foreword.draft.ngram import NgramDrafter
from foreword.draft.none import NoDrafter
from foreword.engine import Engine
from foreword.model import Model, Read, load_tokenizer
from foreword.reader import TextReader
from foreword.scheduler import Scheduler
from foreword.types import Delta, SamplingParams, Sequence
from foreword.verify import rule as find_rule
from foreword.width import Fixed, Width

TEXTS = (
    "The capital of France is",
    "Once upon a time there was a little girl who lived near a forest. One day the little girl",
    "one two three four five one two three four five one two three",
    "Rivers carry water from the mountains to the sea. " * 3 + "Rivers carry",
    "Q: What is the largest planet?\nA:",
)
"""Prompts of different lengths; some of them repeat themselves, so that there is something to look up."""
_ids = count(1)


@cache
def target(dtype: str = "float32") -> Model:
    return Model.load(family.target(), dtype=dtype)


@cache
def draft(dtype: str = "float32") -> Model:
    return Model.load(family.draft(), dtype=dtype)


@cache
def tokenizer():
    return load_tokenizer(family.target())


@cache
def prompts() -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tokenizer()(text)["input_ids"]) for text in TEXTS)


@dataclass(frozen=True)
class Request:
    prompt: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)

    def sequence(self, eos: frozenset[int]) -> Sequence:
        reader = TextReader(tokenizer(), list(self.prompt), self.params.stop, self.params.skip_special_tokens)
        seed = self.params.seed or 0
        return Sequence(next(_ids), list(self.prompt), len(self.prompt), self.params, seed, eos, reader)


@dataclass(frozen=True)
class Answer:
    sequence: Sequence
    deltas: list[Delta]

    @property
    def tokens(self) -> list[int]:
        return self.sequence.tokens[self.sequence.prompt :]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def said(self) -> tuple[list[int], str, str | None]:
        """All that must not depend on who guessed."""
        return self.tokens, self.text, self.sequence.finish_reason


def engine(
    model: Model,
    drafter: Drafter | None = None,
    width: Width | int = 0,
    *,
    rule: str = "match",
    slots: int = 8,
    chunk: int = 512,
) -> Engine:
    width = Fixed(width) if isinstance(width, int) else width
    return Engine(model, drafter or NoDrafter(), find_rule(rule), width, Scheduler(slots=slots, chunk=chunk))


def finish(loop: Engine, requests: List[Request]) -> list[Answer]:
    """Run the requests together to their end."""
    answers = [Answer(request.sequence(loop.target.eos), []) for request in requests]
    by_id = {answer.sequence.id: answer for answer in answers}
    for answer in answers:
        loop.add(answer.sequence)
    while not loop.idle:
        for delta in loop.step():
            by_id[delta.id].deltas.append(delta)
    return answers


def plain(model: Model, requests: List[Request]) -> list[Answer]:
    """What the target says when nobody guesses, one request at a time."""
    return [finish(engine(model), [request])[0] for request in requests]


def drafter(name: str, dtype: str = "float32") -> Drafter:
    """A drafter that ships, over the draft model of the family."""
    return {"none": NoDrafter, "ngram": NgramDrafter, "lm": lambda: LanguageModelDrafter(draft(dtype))}[name]()


def law(model: Model, tokens: List[int]) -> torch.Tensor:
    """The model's own logits after every token of a text, in one forward."""
    model.open(-7, len(tokens))
    try:
        return model.read([Read(-7, 0, list(tokens), keep=len(tokens))]).float()
    finally:
        model.close(-7)
