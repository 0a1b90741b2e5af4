"""What leaving out halves of a target's layers is worth: how deep such guesses come true, and at what price.

Knows masks, texts and forwards; knows nothing about how masks are found.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as List
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

from foreword.bench.prices import Prices
from foreword.draft.layers import DEEPEST, Mask, skipped
from foreword.llm import LLM
from foreword.model import Model, Read
from foreword.model.view import Skipping, view
from foreword.noise import gumbel
from foreword.params import SamplingParams
from foreword.sampling import choose

CHUNK = 512
"""Tokens of a prompt that are read in one forward."""
FIRST = -2
"""The id of the first text; the next counts down. Requests count up from 1."""


@dataclass(frozen=True, slots=True)
class Text:
    """What the target said to a prompt."""

    prompt: int
    """Tokens before the answer."""
    tokens: list[int]
    params: SamplingParams
    """Temperature and seed that it was said with."""


@dataclass(slots=True)
class Reach:
    """How often a chain of guesses was right down to each depth, 1 at place 0."""

    judged: list[int] = field(default_factory=lambda: [0] * DEEPEST)
    right: list[int] = field(default_factory=lambda: [0] * DEEPEST)

    def add(self, guesses: List[int], said: List[int]) -> None:
        """One chain; the text may end before it does."""
        alive = True
        for depth, (guess, truth) in enumerate(zip(guesses, said, strict=False)):
            alive = alive and guess == truth
            self.judged[depth] += 1
            self.right[depth] += alive

    @property
    def shares(self) -> list[float]:
        """The chance that the first k guesses are right, 1 at place 0."""
        return [right / judged if judged else 0.0 for right, judged in zip(self.right, self.judged, strict=True)]


def gain(reach: Reach, prices: Prices, mask: Mask) -> float:
    """Tokens per forward of the target, of the best length of a chain; plain decoding has 1.

    As Leviathan et al. 2023, theorem 3.8, but with the chains that were seen instead of one chance for every guess, and
    with the price of checking. Below 1 where guessing loses at any length.
    """
    earned, best, price = 1.0, 0.0, prices.guess(mask)
    for count, share in enumerate(reach.shares, 1):
        earned += share
        best = max(best, earned / (prices.checks[count] + count * price))
    return best


def written(llm: LLM, prompts: List[List[int]], temperature: float, tokens: int, seed: int) -> list[Text]:
    """What the target says to these prompts, plainly, one seed each; prompts keep what fits before the answer."""
    room = llm.target.context - tokens - DEEPEST
    params = [
        SamplingParams(temperature=temperature, seed=seed + place, max_tokens=tokens) for place in range(len(prompts))
    ]
    asked = [list(prompt[-room:]) for prompt in prompts]
    said = llm.generate(asked, params)
    texts = [
        Text(len(prompt), prompt + one.tokens, wish) for prompt, one, wish in zip(asked, said, params, strict=True)
    ]
    return [text for text in texts if len(text.tokens) > text.prompt + 1]


class Examiner:
    """Lets masks guess at texts that the target wrote, as they would have while it wrote them.

    A chain of guesses begins after every `DEEPEST` tokens of an answer, and follows the target's own keys and values,
    as at work. Chains are read from the last to the first, since what a mask reads replaces what the target had read
    there and later; the target reads the answer again before the next mask does.
    """

    def __init__(self, target: Model, texts: List[Text]) -> None:
        """Raises InvalidRequest where no halves of the target's layers can be left out."""
        self.target, self.texts = target, tuple(texts)
        self.twin = view(target, spare=DEEPEST)

    @contextmanager
    def open(self) -> Iterator[None]:
        """While inside, the target holds the texts."""
        try:
            for place, text in enumerate(self.texts):
                self.target.open(FIRST - place, len(text.tokens) + DEEPEST)
                for start in range(0, text.prompt, CHUNK):
                    part = text.tokens[start : min(start + CHUNK, text.prompt)]
                    self.target.read([Read(FIRST - place, start, part, keep=0)])
            yield
        finally:
            for place in range(len(self.texts)):
                self.target.close(FIRST - place)

    @property
    def sample(self) -> Read:
        """A token of the first text, to time forwards with."""
        text = self.texts[0]
        return Read(FIRST, text.prompt, text.tokens[text.prompt : text.prompt + 1])

    def values(self, mask: Mask, prices: Prices) -> Iterator[float]:
        """What a mask is worth, by the first text alone, by the first two … and at last by all."""
        reach = Reach()
        for place, text in enumerate(self.texts):
            with self.target.steady():
                self._examine(FIRST - place, text, mask, reach)
            yield gain(reach, prices, mask)

    def _examine(self, id: int, text: Text, mask: Mask, reach: Reach) -> None:
        start, end = text.prompt, len(text.tokens)
        self.target.read([Read(id, start, text.tokens[start:], keep=0)])
        cast("Skipping", self.twin.driver).skip(skipped(mask))
        for begin in reversed(range(start, end - 1, DEEPEST)):
            said = text.tokens[begin + 1 : begin + 1 + DEEPEST]
            logits = self.twin.read([Read(id, begin, text.tokens[begin : begin + len(said)], keep=len(said))])
            noise, seed = None, text.params.seed or 0
            if not text.params.greedy:
                positions = range(begin + 1, begin + 1 + len(said))
                noise = gumbel([seed] * len(said), positions, logits.shape[-1], device=logits.device)
            reach.add(choose(logits, text.params, noise, list(range(len(said)))), said)
