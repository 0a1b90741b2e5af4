"""The fixed prompts that every figure is measured on, and prompts from a file of
records.
"""

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import takewhile
from pathlib import Path

from foreword.errors import InvalidRequest

_FILES = {"in-domain": "in_domain.jsonl", "out-of-domain": "out_of_domain.jsonl"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation that ends with the user's turn; at most 300 tokens of the
    bundled tokenizer.
    """

    id: str
    """Source and index in it, such as "gsm8k_test/354"."""
    source: str
    """The data set it was taken from; data/README.md names its licence."""
    category: str
    """Kind of answer requested, such as "code" or "translation"."""
    messages: tuple[Mapping[str, str], ...]
    """Turns with the keys "role" and "content"."""


def load(kind: str) -> list[Prompt]:
    """Read the prompts, always the same and in the same order.

    "FILE.jsonl" or "FILE.jsonl.gz": the messages before the first answer of each
    record, ordered by source.

    "in-domain": 63 held-out prompts of the kinds the bundled models were trained on,
    three from each source. "out-of-domain": 24 public benchmark prompts of other kinds.
    Raises InvalidRequest for any other kind.
    """
    if kind.endswith((".jsonl", ".jsonl.gz")):
        return _from_file(Path(kind))
    if kind not in _FILES:
        raise InvalidRequest(
            f"cannot load {kind!r} prompts: no such set. Choose one of "
            f"{', '.join(_FILES)}, or a .jsonl file"
        )
    text = (files("foreword.bench") / "data" / _FILES[kind]).read_text(encoding="utf-8")
    records = (json.loads(line) for line in text.rstrip("\n").split("\n"))
    return [
        Prompt(**{**record, "messages": tuple(record["messages"])})
        for record in records
    ]


def _from_file(path: Path) -> list[Prompt]:
    prompts: list[Prompt] = []
    try:
        text = (
            gzip.decompress(path.read_bytes())
            if path.suffix == ".gz"
            else path.read_bytes()
        )
        for number, record in enumerate(
            map(json.loads, filter(None, text.split(b"\n")))
        ):
            source = record.get("source") or path.name.partition(".")[0]
            turns = takewhile(
                lambda turn: turn["role"] != "assistant", record["messages"]
            )
            asked = tuple(
                {"role": turn["role"], "content": turn["content"]} for turn in turns
            )
            prompts.append(Prompt(f"{source}/{number}", source, source, asked))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(
            f"cannot read prompts from {path}: {error}. Give JSON lines, each with the "
            "messages of a conversation"
        ) from error
    if not prompts or not all(prompt.messages for prompt in prompts):
        raise InvalidRequest(
            f"cannot use the prompts of {path}: a record has no message before its "
            "answer. Add one"
        )
    return sorted(prompts, key=lambda prompt: prompt.source)
