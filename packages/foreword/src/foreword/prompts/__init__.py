"""The fixed prompts that every figure is measured on, and prompts from a file."""

import gzip
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import takewhile
from pathlib import Path
from typing import Any

from foreword.errors import InvalidRequest

FOLDER = "FOREWORD_PROMPTS"
"""Environment variable that names a folder of prompt sets; else ./prompts."""
ENDS = (".txt", ".jsonl", ".jsonl.gz")
"""Ends of files: with a prompt a line, and with a record a line."""
FIELDS = ("turns", "prompt", "question")
"""Fields that hold the user's first turn: Spec-Bench and MT-Bench, HumanEval, GSM8K."""
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


def file_of(kind: str) -> Path | None:
    """Return the file that a kind of prompts names: its path, or a file of this name in
    the folder of prompt sets; None for a set of Foreword's own.

    "spec-bench" is spec_bench.jsonl there, and "gsm8k" gsm8k_test.jsonl.
    """
    if kind.endswith(ENDS):
        return Path(kind)
    folder, name = Path(os.environ.get(FOLDER, "prompts")), kind.replace("-", "_")
    if kind in _FILES or not folder.is_dir():
        return None
    paths = {
        path.name.partition(".")[0]: path
        for path in sorted(folder.iterdir())
        if path.name.endswith(ENDS)
    }
    return paths.get(name) or paths.get(f"{name}_test")


def load(kind: str) -> list[Prompt]:
    """Read the prompts, always the same and in the same order.

    A file, by its path or its name (`file_of`): each line of text, or of each record
    the messages before the first answer, or the first of its FIELDS; ordered by source.

    "in-domain": 63 held-out prompts of the kinds the bundled models were trained on,
    three from each source. "out-of-domain": 24 public benchmark prompts of other kinds.
    Raises InvalidRequest for any other kind.
    """
    if (path := file_of(kind)) is not None:
        return _from_file(path)
    if kind not in _FILES:
        folder = os.environ.get(FOLDER, "prompts")
        raise InvalidRequest(
            f"cannot load {kind!r} prompts: no such set. Choose one of "
            f"{', '.join(_FILES)}, a .jsonl or .txt file, "
            f"or a file of the folder {folder}"
        )
    text = (files("foreword.prompts") / "data" / _FILES[kind]).read_text(
        encoding="utf-8"
    )
    records = (json.loads(line) for line in text.rstrip("\n").split("\n"))
    return [
        Prompt(**{**record, "messages": tuple(record["messages"])})
        for record in records
    ]


def _from_file(path: Path) -> list[Prompt]:
    prompts: list[Prompt] = []
    name = path.name.partition(".")[0]
    try:
        text = path.read_bytes()
        if path.suffix == ".gz":
            text = gzip.decompress(text)
        lines = filter(None, map(bytes.strip, text.split(b"\n")))
        for number, line in enumerate(lines):
            if path.suffix == ".txt":
                record = {"prompt": line.decode()}
            else:
                record = json.loads(line)
            source = record.get("source") or record.get("category") or name
            turns = _messages(record)
            prompts.append(Prompt(f"{source}/{number}", source, source, turns))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidRequest(
            f"cannot read prompts from {path}: {error}. Give a prompt a line, or JSON "
            f"lines, each with messages, {' or '.join(FIELDS)}"
        ) from error
    if not prompts or not all(prompt.messages for prompt in prompts):
        raise InvalidRequest(
            f"cannot use the prompts of {path}: a record has no message before its "
            "answer. Add one"
        )
    return sorted(prompts, key=lambda prompt: prompt.source)


def _messages(record: Mapping[str, Any]) -> tuple[Mapping[str, str], ...]:
    """Return the turns before the first answer of a record."""
    fields = [field for field in FIELDS if field in record]
    if "messages" in record or not fields:
        turns = record["messages"]
    else:
        text = record[fields[0]]
        text = text if isinstance(text, str) else text[0]
        if not isinstance(text, str):
            raise TypeError(f"{text!r} must be a string")
        turns = [{"role": "user", "content": text}]
    begin = takewhile(lambda turn: turn["role"] != "assistant", turns)
    return tuple({"role": turn["role"], "content": turn["content"]} for turn in begin)
