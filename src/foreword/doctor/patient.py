"""The drafter under examination: what was measured, and measuring it again with one
thing changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from foreword.api.llm import LLM
from foreword.bench.prompts import Prompt
from foreword.doctor.figures import BUDGETS, Figures, figures
from foreword.theory.rounds import Answers, measure
from foreword.types import SamplingParams


@dataclass(slots=True, kw_only=True)
class Patient:
    """A drafter on its target, and its figures."""

    llm: LLM
    draft: str | None
    method: str
    chats: Sequence[Prompt] = ()
    """Conversations of the prompts; empty if the prompts are texts."""
    prompts: Sequence[Sequence[int]]
    tokens: int
    """Maximum number of new tokens in each answer."""
    note: Callable[[str], None] = lambda _: None
    figures: dict[str, Figures] = field(default_factory=dict)
    """By temperature, "0" and "1"."""
    answers: list[list[int]] = field(default_factory=list)
    """Answers of plain decoding, at both temperatures."""

    @property
    def greedy(self) -> Figures:
        """Figures at temperature 0."""
        return self.figures["0"]

    @property
    def sampled(self) -> Figures:
        """Figures at temperature 1."""
        return self.figures["1"]

    def measure(self) -> None:
        """Measure at temperatures 0 and 1."""
        for temperature in (0.0, 1.0):
            self.note(f"{len(self.prompts)} prompts at temperature {temperature:g}")
            answers = self._answers(self.prompts, temperature)
            self.answers += answers.tokens
            self.figures[f"{temperature:g}"] = figures(answers, self.llm.target.cost)

    def again(self, prompts: Sequence[Sequence[int]] | None = None) -> Figures:
        """Measure at temperature 0 after a change, or on other prompts."""
        answers = self._answers(prompts or self.prompts, 0.0)
        return figures(answers, self.llm.target.cost)

    def _answers(self, prompts: Sequence[Sequence[int]], temperature: float) -> Answers:
        params = SamplingParams(
            temperature=temperature, seed=0, max_tokens=self.tokens, ignore_eos=True
        )
        return measure(self.llm, prompts, params, budgets=BUDGETS)
