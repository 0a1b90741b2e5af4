"""How every kind of model in transformers is driven, and whether its texts depend on
draft tokens, batch or chunks.

`PYTHONPATH=tests python tests/support/sweep.py` writes the file that
tests/guarantees/test_architectures.py checks, and `python -m website.models` then fills
the tables of docs/models.md. With names of kinds, it prints what it found of these.
"""

import json
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import zoo
from drafters import Foresight, known
from foreword.model import Mode, Model
from foreword.types import SamplingParams
from running import Answer, Case, engine, finish, plain

FILE = Path(__file__).parents[2] / "docs" / "numbers" / "models" / "sweep.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SECONDS = 180
"""A kind that takes longer is not tried to its end."""
LONGEST = 300
"""Characters of a reason that are kept."""


@dataclass(frozen=True)
class Found:
    """One kind in one dtype."""

    backend: str
    why: str
    differing: tuple[str, ...]
    """Ways to run it in which a text or a log-probability was another."""
    accepted: int
    refused: int


def requests() -> list[Case]:
    drawn = torch.randint(
        4, zoo.VOCAB - 4, (2, 21), generator=torch.Generator().manual_seed(5)
    ).tolist()
    settings = [(0.0, 13), (1.0, 21)]
    return [
        Case(
            tuple(row[:size]),
            SamplingParams(temperature=heat, seed=7, max_tokens=16, logprobs=1),
        )
        for row, (heat, size) in zip(drawn, settings, strict=True)
    ]


def said(answers: list[Answer]) -> list[tuple[list[int], list[float]]]:
    """All that must be equal bit for bit."""
    return [
        (answer.tokens, [one.logprob for one in answer.logprobs]) for answer in answers
    ]


def differing(model: Model) -> tuple[tuple[str, ...], int, int]:
    """How a model says something else, and how many draft tokens were accepted."""
    asked, wrong, accepted, refused = requests(), [], 0, 0
    truth = plain(model, asked)
    for name, draft_tokens, chunk, together in (
        ("drafted", 4, 512, False),
        ("drafted, batch, chunks", 5, 7, True),
    ):
        got: list[Answer] = []
        for part in [asked] if together else [[one] for one in asked]:
            drafter = (
                Foresight(known(truth), spoilt=0.4, vocab=model.vocab)
                if draft_tokens
                else None
            )
            loop = engine(model, drafter, draft_tokens, chunk=chunk)
            got += finish(loop, part)
            assert loop.failed is None, loop.failed
        wrong += [name] if said(got) != said(truth) else []
        accepted += sum(answer.request.stats.accepted for answer in got)
        refused += sum(
            answer.request.stats.drafted - answer.request.stats.accepted
            for answer in got
        )
    return tuple(wrong), accepted, refused


def find(kind: str, dtype: str) -> Found:
    """Drive one kind. Raises whatever stands in the way."""
    with warnings.catch_warnings(), _limit():
        warnings.simplefilter("ignore")
        model = Model(zoo.twin(zoo.build(kind), DTYPES[dtype]))
        wrong, accepted, refused = differing(model)
    if model.mode is not Mode.PLAIN and not accepted * refused:
        wrong += (f"accepted {accepted}, refused {refused}",)
    return Found(
        model.capability.backend,
        "; ".join(f"{w}: {r}" for w, r in model.capability.refused),
        wrong,
        accepted,
        refused,
    )


@contextmanager
def _limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def record(kind: str) -> dict[str, Any]:
    """Return what the file has of one kind; an error is the reason of no backend."""
    found: dict[str, Any] = {"family": _family(kind)}
    same = zoo.same_class(kind)
    if same:
        found["also"] = same
    for dtype in DTYPES:
        try:
            run = find(kind, dtype)
        except Exception as error:  # noqa: BLE001 - it is what the file is to say
            found[dtype] = _cell(None, f"{type(error).__name__}: {error}", ())
        else:
            found[dtype] = _cell(run.backend, run.why, run.differing)
        if "keep a recurrent state" in found[dtype]["why"]:
            found["family"] = "recurrent"
    return found


def _family(kind: str) -> str:
    try:
        return zoo.family(kind)
    except Exception:  # noqa: BLE001 - no config of this kind can be made
        return "unknown"


def _cell(backend: str | None, why: str, differs: tuple[str, ...]) -> dict[str, Any]:
    reason = " ".join(why.split())[:LONGEST]
    return {"backend": backend, "why": reason, "differs": list(differs)}


def sweep(kinds: list[str]) -> str:
    """Return the file of these kinds."""
    found = {
        "transformers": transformers.__version__,
        "kinds": {kind: record(kind) for kind in kinds},
    }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if sys.argv[1:]:
        sys.stdout.write(sweep(sys.argv[1:]))
    else:
        FILE.write_text(sweep(zoo.kinds()), encoding="utf-8")
