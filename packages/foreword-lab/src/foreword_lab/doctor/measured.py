"""The drafter under examination: its figures, and measuring it with one change."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from foreword.api.session import Session
from foreword.prompts import Prompt
from foreword.types import SamplingParams
from foreword_lab.doctor.figures import BUDGETS, Figures, figures
from foreword_lab.doctor.rounds import Answers, measure

Prompts = Sequence[Sequence[int]]
"""Token ids of each prompt."""


@dataclass(slots=True, kw_only=True)
class MeasuredPair:
    """A drafter on its target, and its figures."""

    session: Session
    draft: str | None
    method: str
    chats: Sequence[Prompt] = ()
    """Conversations of the prompts; empty if the prompts are texts."""
    prompts: Prompts
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
        for heat in ("0", "1"):
            count = len(self.prompts)
            self.note(f"{count} prompts at temperature {heat}")
            answers = self._answers(self.prompts, heat, BUDGETS)
            self.answers += answers.tokens
            self.figures[heat] = figures(answers, self.session.target.cost)

    def again(self, prompts: Prompts | None = None) -> Figures:
        """Return the acceptance at temperature 0 after a change, or on other prompts;
        plain decoding is not timed again.
        """
        answers = self._answers(prompts or self.prompts, "0", BUDGETS[1:])
        return figures(answers, self.session.target.cost)

    def _answers(
        self, prompts: Prompts, heat: str, budgets: tuple[int, ...]
    ) -> Answers:
        params = SamplingParams(
            temperature=float(heat), seed=0, max_tokens=self.tokens, ignore_eos=True
        )
        return measure(self.session, prompts, params, budgets)
