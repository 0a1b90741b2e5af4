"""How every kind of model in transformers is driven, and whether its texts depend on
draft tokens, batch or chunks.

`PYTHONPATH=tests python tests/support/sweep.py` writes docs/models.md, which
tests/guarantees/test_architectures.py checks.
"""

import re
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

import zoo
from drafters import Foresight, known
from foreword.model import Mode, Model
from foreword.types import SamplingParams
from running import Answer, Case, engine, finish, plain

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SECONDS = 180
"""A kind that takes longer is not tried to its end."""
HEAD = """# Kinds of model

Every model type that `transformers` {version} loads as a causal language model, as a tiny random model in which states,
experts and biases matter, and the backend that the probe chooses for it on a CPU ([how it works](how-it-works.md)).
Texts and log-probabilities of each row were equal bit for bit: plain alone, and with draft tokens of which some were
accepted and some refused, alone, in a batch and with the prompt in chunks. A row where they were not says so. `plain`
scores no draft tokens, so nothing is faster there. `PYTHONPATH=tests python tests/support/sweep.py` writes this page.

| kind | float32 | bfloat16 | why not better |
|---|---|---|---|
"""


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
        (
            answer.tokens,
            [one.logprob for delta in answer.deltas for one in delta.logprobs],
        )
        for answer in answers
    ]


def differing(model: Model) -> tuple[tuple[str, ...], int, int]:
    """In which ways to run it a model says something else, and how many draft tokens
    were accepted and refused.
    """
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
        accepted += sum(answer.sequence.stats.accepted for answer in got)
        refused += sum(
            answer.sequence.stats.drafted - answer.sequence.stats.accepted
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


def row(kind: str) -> str:
    """One line of the table."""
    cells, reasons = [], []
    for dtype in DTYPES:
        try:
            found = find(kind, dtype)
        except Exception as error:  # noqa: BLE001 - it is what the table is to say
            cells.append("-")
            reasons.append(f"{type(error).__name__}: {error}")
            continue
        cells.append(
            found.backend.replace("plain (whole texts)", "plain, whole texts")
            + (f" **differs: {', '.join(found.differing)}**" if found.differing else "")
        )
        reasons.append(found.why)
    why = " / ".join(
        dict.fromkeys(
            re.sub(r"[\s|]+", " ", reason)[:300] for reason in reasons if reason
        )
    )
    return f"| {kind} | {cells[0]} | {cells[1]} | {why} |\n"


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    if sys.argv[1:]:
        sys.stdout.writelines(map(row, sys.argv[1:]))
    else:
        PAGE.write_text(
            HEAD.format(version=transformers.__version__)
            + "".join(map(row, zoo.kinds())),
            encoding="utf-8",
        )
