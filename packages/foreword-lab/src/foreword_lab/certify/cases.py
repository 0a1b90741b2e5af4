"""The requests of a certificate: prompts, temperatures, filters, lengths, a schema."""

from dataclasses import dataclass
from importlib.util import find_spec

from foreword.api.llm import LLM
from foreword.types import SamplingParams
from foreword_lab.certify.remote.forms import CITY

TEXTS = (
    "one two three four five one two three four five one two three",
    "Once upon a time there was a little girl who lived near a forest. One day she",
    "Rivers carry water from the mountains to the sea. " * 6 + "Rivers carry",
    "Q: What is the largest planet?\nA:",
    "The capital of France is",
    "Name: Ada. City: Paris. Name: Bob. City: Rome. Name: Eve. City:",
)
"""Prompts of different lengths; some repeat themselves, so that there is something to
look up.
"""
SETTINGS = (
    (0.0, 1.0, 0),
    (0.7, 1.0, 0),
    (1.0, 1.0, 0),
    (1.3, 1.0, 0),
    (0.7, 0.9, 0),
    (1.0, 1.0, 40),
    (1.3, 0.95, 50),
)
"""(temperature, top_p, top_k)."""
LENGTHS = (16, 28, 40)
"""Tokens. Lengths of answers."""
FREE = "free text"
"""Condition of a request without a schema: forced text is accepted from any method."""
FORM = 5
"""Prompt whose answer follows the schema, where xgrammar is installed."""


@dataclass(frozen=True, slots=True)
class Case:
    """One request, with the conditions that the report counts it under."""

    prompt: tuple[int, ...]
    params: SamplingParams

    @property
    def conditions(self) -> list[str]:
        """Names of what is special about the request."""
        params = self.params
        named = {
            FREE: not params.structured,
            f"temperature {params.temperature:g}": True,
            f"top_p {params.top_p:g}": params.top_p < 1,
            f"top_k {params.top_k}": params.top_k > 0,
            "JSON schema": params.structured,
        }
        return [name for name, holds in named.items() if holds]


def encoded(llm: LLM, text: str) -> tuple[int, ...]:
    """Return the token ids of a prompt."""
    return tuple(llm.tokenizer(text)["input_ids"])


def cases(llm: LLM, turn: int, seed: int) -> list[Case]:
    """Return one request for each prompt; every turn pairs prompts and settings
    differently.
    """
    requests = []
    for index, text in enumerate(TEXTS):
        temperature, top_p, top_k = SETTINGS[(index + turn) % len(SETTINGS)]
        has_form = index == FORM and find_spec("xgrammar") is not None
        params = SamplingParams(
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed + len(TEXTS) * turn + index,
            max_tokens=LENGTHS[(index + turn) % len(LENGTHS)],
            ignore_eos=not has_form and index % 2 == 0,
            json_schema=CITY if has_form else None,
        )
        requests.append(Case(encoded(llm, text), params))
    return requests
