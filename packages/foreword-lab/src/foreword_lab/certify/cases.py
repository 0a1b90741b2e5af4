"""The requests of a certificate: prompts, temperatures, filters, penalties, lengths,
forms.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from foreword.api.llm import LLM
from foreword.types import SamplingParams
from foreword_lab.certify.remote.forms import CITY

TEXTS = (
    " ".join(["one two three four five"] * 9),
    "Once upon a time there was a little girl who lived near a forest. One day she",
    "Rivers carry water from the mountains to the sea. " * 6 + "Rivers carry",
    "Q: What is the largest planet?\nA:",
    "The capital of France is",
    "Name: Ada. City: Paris. Name: Bob. City: Rome. Name: Eve. City:",
    "Rivers carry water from the mountains to the sea. " * 4
    + "Lakes keep the water of the mountains. " * 3
    + "Rivers carry",
)
"""Prompts of different lengths; some repeat themselves, so that there is something to
look up, two begin alike for most of a page, and the first goes on into another page.
"""
SETTINGS: tuple[Mapping[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 1.0},
    {"temperature": 1.3},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 1.3, "top_p": 0.95, "top_k": 50},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.0, "repetition_penalty": 1.4},
    {"temperature": 0.7, "presence_penalty": 1.0, "frequency_penalty": 1.0},
    {"temperature": 0.7, "stop": (".", ",")},
)
"""Parameters of sampling and of the end. Two turns have all of them."""
LENGTHS = (16, 28, 40)
"""Tokens. Lengths of answers."""
FREE = "free text"
"""Condition of a request without a schema: forced text is accepted from any method."""
FORMS: Mapping[int, Mapping[str, Any]] = {
    4: {"regex": r"( [A-Za-z]+){4,12}[.!]"},
    5: {"json_schema": CITY},
}
"""Prompts whose answers follow a form, where xgrammar is installed."""


@dataclass(frozen=True, slots=True)
class Case:
    """One request, with the conditions that the report counts it under."""

    prompt: tuple[int, ...]
    params: SamplingParams

    @property
    def conditions(self) -> list[str]:
        """Names of what is special about the request."""
        params = self.params
        penalties = params.presence_penalty, params.frequency_penalty
        named = {
            FREE: not params.structured,
            f"temperature {params.temperature:g}": True,
            f"top_p {params.top_p:g}": params.top_p < 1,
            f"top_k {params.top_k}": params.top_k > 0,
            f"min_p {params.min_p:g}": params.min_p > 0,
            "penalties": any(penalties) or params.repetition_penalty != 1,
            "stop texts": bool(params.stop),
            "JSON schema": params.json_schema is not None,
            "regex": params.regex is not None,
        }
        return [name for name, holds in named.items() if holds]


def encoded(llm: LLM, text: str) -> tuple[int, ...]:
    """Return the token ids of a prompt."""
    return tuple(llm.tokenizer(text)["input_ids"])


def cases(llm: LLM, turn: int, seed: int) -> list[Case]:
    """Return one request for each prompt; every turn pairs prompts and settings
    differently.
    """
    has_forms = find_spec("xgrammar") is not None
    requests = []
    for index, text in enumerate(TEXTS):
        number = index + len(TEXTS) * turn
        form = FORMS.get(index, {}) if has_forms else {}
        params = SamplingParams(
            **SETTINGS[number % len(SETTINGS)],
            **form,
            seed=seed + number,
            max_tokens=LENGTHS[(index + turn) % len(LENGTHS)],
            ignore_eos=not form and index % 2 == 0,
        )
        requests.append(Case(encoded(llm, text), params))
    return requests
