"""Value of a mask: the accepted depth of its drafts in replayed answers, and their
cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

from foreword.api.llm import LLM
from foreword.draft.self_speculative.layers import DEEPEST, Mask, skipped
from foreword.model import Model, Read
from foreword.model.view import Skipping, view
from foreword.sampling.draw import choose
from foreword.sampling.noise import gumbel
from foreword.tune.cost import Prices
from foreword.types.params import SamplingParams

CHUNK = 512
"""Tokens of a prompt read in one forward."""
FIRST = -2
"""Id of the first text; the following ones count down, since requests count
up from 1.
"""


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the target's answer."""

    prompt: int
    """Number of tokens before the answer."""
    tokens: list[int]
    params: SamplingParams
    """Temperature and seed of the answer."""


@dataclass(slots=True)
class Reach:
    """Counts of draft chains accepted down to each depth; depth 1 at index 0."""

    verified: list[int] = field(default_factory=lambda: [0] * DEEPEST)
    accepted: list[int] = field(default_factory=lambda: [0] * DEEPEST)

    def add(self, draft_tokens: Sequence[int], answer: Sequence[int]) -> None:
        """Count one chain; the answer may be shorter."""
        alive = True
        for depth, (draft_token, truth) in enumerate(
            zip(draft_tokens, answer, strict=False)
        ):
            alive = alive and draft_token == truth
            self.verified[depth] += 1
            self.accepted[depth] += alive

    @property
    def shares(self) -> list[float]:
        """Share of chains whose first k draft tokens are accepted; k = 1 at index 0."""
        return [
            accepted / verified if verified else 0.0
            for accepted, verified in zip(self.accepted, self.verified, strict=True)
        ]


def gain(reach: Reach, prices: Prices, mask: Mask) -> float:
    """Return tokens per forward's time of the target, at the best chain length; plain
    decoding has 1.

    As Leviathan et al. 2023, theorem 3.8, but with measured chains instead of one
    acceptance probability, and with the cost of scoring. Below 1 if drafting loses at
    any length.
    """
    expected = 1.0
    best = 0.0
    cost = prices.propose(mask)
    for count, share in enumerate(reach.shares, 1):
        expected += share
        best = max(best, expected / (prices.checks[count] + count * cost))
    return best


def written(
    llm: LLM,
    prompts: Sequence[Sequence[int]],
    temperature: float,
    tokens: int,
    seed: int,
) -> list[Text]:
    """Return the target's answers by plain decoding, one seed per prompt; prompts are
    cut at the start to fit.
    """
    room = llm.target.context - tokens - DEEPEST
    params = [
        SamplingParams(temperature=temperature, seed=seed + place, max_tokens=tokens)
        for place in range(len(prompts))
    ]
    cut = [list(prompt[-room:]) for prompt in prompts]
    answers = llm.generate(cut, params)
    texts = [
        Text(len(prompt), prompt + one.tokens, sampling)
        for prompt, one, sampling in zip(cut, answers, params, strict=True)
    ]
    return [text for text in texts if len(text.tokens) > text.prompt + 1]


class MaskReplay:
    """Replays the target's answers with a mask: drafts as in decoding and compares with
    the answer.

    A chain starts after every `DEEPEST` tokens of an answer and reads the target's own
    keys and values, as in decoding. Chains are read from last to first, since a mask's
    forward overwrites the target's keys and values from its position on. The target
    reads the answer again before the next mask.
    """

    def __init__(self, target: Model, texts: Sequence[Text]) -> None:
        """Raises InvalidRequest if no halves of the target's layers can be left out."""
        self.target, self.texts = target, tuple(texts)
        self.twin = view(target, spare=DEEPEST)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Keep the texts open in the target while inside."""
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
        """Read of one token of the first text, to time forwards with."""
        text = self.texts[0]
        return Read(FIRST, text.prompt, text.tokens[text.prompt : text.prompt + 1])

    def values(self, mask: Mask, prices: Prices) -> Iterator[float]:
        """Yield the value of a mask over the first text, the first two … and finally
        all.
        """
        reach = Reach()
        for place, text in enumerate(self.texts):
            with self.target.single_torch_thread():
                self._replay(FIRST - place, text, mask, reach)
            yield gain(reach, prices, mask)

    def _replay(self, id: int, text: Text, mask: Mask, reach: Reach) -> None:
        start, end = text.prompt, len(text.tokens)
        self.target.read([Read(id, start, text.tokens[start:], keep=0)])
        cast("Skipping", self.twin.backend).skip(skipped(mask))
        for begin in reversed(range(start, end - 1, DEEPEST)):
            answer = text.tokens[begin + 1 : begin + 1 + DEEPEST]
            logits = self.twin.read(
                [
                    Read(
                        id,
                        begin,
                        text.tokens[begin : begin + len(answer)],
                        keep=len(answer),
                    )
                ]
            )
            noise, seed = None, text.params.seed or 0
            if not text.params.greedy:
                positions = range(begin + 1, begin + 1 + len(answer))
                noise = gumbel(
                    [seed] * len(answer),
                    positions,
                    logits.shape[-1],
                    device=logits.device,
                )
            reach.add(
                choose(logits, text.params, noise, list(range(len(answer)))), answer
            )
