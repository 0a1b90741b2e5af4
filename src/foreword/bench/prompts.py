"""The fixed prompts that every figure is measured on."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from foreword.errors import InvalidRequest

Kind = Literal["in-domain", "out-of-domain"]

_FILES = {"in-domain": "in_domain.jsonl", "out-of-domain": "out_of_domain.jsonl"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation that ends with the user's turn; at most 300 tokens of the bundled tokenizer."""

    id: str
    """Source and index in it, such as "gsm8k_test/354"."""
    source: str
    """The data set it was taken from; data/README.md names its licence."""
    category: str
    """Kind of answer requested, such as "code" or "translation"."""
    messages: tuple[Mapping[str, str], ...]
    """Turns with the keys "role" and "content"."""


def load(kind: Kind) -> list[Prompt]:
    """Read the prompts, always the same and in the same order.

    "in-domain": 63 held-out prompts of the kinds the bundled models were trained on, three from each source.
    "out-of-domain": 24 public benchmark prompts of other kinds. Raises InvalidRequest for any other kind.
    """
    if kind not in _FILES:
        raise InvalidRequest(f"cannot load {kind!r} prompts: no such set. Choose one of {', '.join(_FILES)}")
    text = (files("foreword.bench") / "data" / _FILES[kind]).read_text(encoding="utf-8")
    records = (json.loads(line) for line in text.rstrip("\n").split("\n"))
    return [Prompt(**{**record, "messages": tuple(record["messages"])}) for record in records]
