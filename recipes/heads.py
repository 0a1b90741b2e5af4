"""Train heads for published models: EAGLE-3 and a layer of multi-token prediction.

$ python recipes/heads.py MODELS CORPUS.jsonl.gz OUT smollm2-eagle
$ python recipes/heads.py MODELS CORPUS.jsonl.gz OUT smollm2-mtp
$ python recipes/heads.py MODELS CORPUS.jsonl.gz OUT qwen-1.5b-eagle

MODELS is the folder of `recipes/published.py`; CORPUS has records (docs/training.md);
the target answers their questions anew. A run that was cut off is continued: its
answers, and its training from the last checkpoint. Training wants two cores that do
nothing else.
"""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import typer
from published import fetch

SOURCES = {
    "dolly15k": 3000,
    "gsm8k": 800,
    "python_puzzles": 300,
    "python_stdlib": 600,
    "wiki_split": 400,
    "medquad": 900,
    "en_de": 300,
    "open_trivia": 300,
    "mawps": 100,
    "sgd_chat": 300,
}
"""Source -> questions taken of it at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A head, and how it is trained."""

    model: str
    """Name of the target in published.json."""
    method: str
    answers: int
    """Questions that the target answers."""
    tokens: int
    """Longest answer."""
    heat: float
    options: str
    """Options of `foreword train`."""


SHARED = "--length 256 --save 25"
HEADS = {
    # 2.0 s a step on two cores with AMX
    "smollm2-eagle": Head(
        model="smollm2",
        method="eagle",
        answers=2368,
        tokens=192,
        heat=1.0,
        options=f"{SHARED} --steps 1000 --batch 4 --unroll 4 --draft-vocab 16384",
    ),
    "smollm2-mtp": Head(
        model="smollm2",
        method="mtp",
        answers=2368,
        tokens=192,
        heat=1.0,
        options=f"{SHARED} --steps 1000 --batch 4 --unroll 3",
    ),
    "qwen-1.5b-eagle": Head(
        model="qwen-1.5b",
        method="eagle",
        answers=900,
        tokens=128,
        heat=0.7,
        options=f"{SHARED} --steps 1000 --batch 2 --unroll 4 --draft-vocab 16384",
    ),
}


def questions(corpus: Path, file: Path) -> None:
    """Write the first turns of records, some of each source, in random order."""
    by_source: dict[str, list[dict]] = {}
    with gzip.open(corpus, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            record["messages"] = record["messages"][:2]
            by_source.setdefault(record["source"], []).append(record)
    draw = random.Random(1)
    records = [
        record
        for source, count in SOURCES.items()
        for record in draw.sample(by_source[source], min(count, len(by_source[source])))
    ]
    draw.shuffle(records)
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    file.write_text("".join(lines), encoding="utf-8")


def run(*words: object) -> None:
    """Run a command of Foreword."""
    subprocess.run([sys.executable, "-m", "foreword", *map(str, words)], check=True)


def main(models: Path, corpus: Path, out: Path, name: str) -> None:
    """Regenerate the answers of a target, and train one head on them."""
    head = HEADS[name]
    model = fetch(head.model, models)
    out.mkdir(parents=True, exist_ok=True)
    asked, answers = out / "questions.jsonl", out / f"{head.model}.jsonl"
    if not asked.exists():
        questions(corpus, asked)
    about = f"--limit {head.answers} --max-tokens {head.tokens} -t {head.heat}"
    words = ("data", "regenerate", "--data", asked, "--out", answers, "--batch", 64)
    run(*words, "--model", model, *about.split())
    folder = out / name
    words = ("train", head.method, "--model", model, "--data", answers, "--out", folder)
    resumed = ("--resume",) if folder.exists() else ()
    run(*words, *head.options.split(), *resumed)


if __name__ == "__main__":
    typer.run(main)
