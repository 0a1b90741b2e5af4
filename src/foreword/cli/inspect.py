"""`foreword inspect`: how a model will be driven, why, and what its passes cost. Knows what to ask, decides nothing."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from foreword.cli import options, show

if TYPE_CHECKING:
    from rich.table import Table

    from foreword.llm import LLM


def inspect(
    model: Annotated[str | None, typer.Argument(help="Folder or hub id. Default: the family that ships.")] = None,
    *,
    draft: options.DraftName = None,
    dtype: options.DtypeName = "auto",
    device: options.Device = "auto",
    as_json: options.AsJson = False,
) -> None:
    """Load a model and say which way it can be driven, why, and what guesses would cost."""
    from foreword import LLM
    from foreword.draft import PLAIN, WITH_DRAFT, WITHOUT_DRAFT

    llm = LLM(model, method=PLAIN, dtype=dtype, device=device)
    guessed = WITH_DRAFT if draft is not None or model is None else WITHOUT_DRAFT
    facts = _model(llm) | {"default method": guessed}
    if draft is not None:
        same, why = _vocabulary(llm, draft)
        facts |= {"draft": draft, "same vocabulary": same, "vocabulary": why}
    cost = _cost(llm)
    if as_json:
        plain = {name.replace(" ", "_"): value for name, value in facts.items()}
        sys.stdout.write(json.dumps(plain | {"milliseconds": cost}) + "\n")
        return
    show.facts(facts)
    show.stdout().print(_table(cost))


def _model(llm: LLM) -> dict[str, object]:
    target = llm.target
    return {
        "model": target.name,
        "architecture": type(target.hf).__name__,
        "parameters": target.parameters,
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device),
        "context": target.context,
        "vocabulary size": target.vocab,
        "chat template": bool(llm.tokenizer.chat_template),
        "mode": target.mode.value,
        "way": target.capability.way,
        "why": target.capability.reason,
    }


def _cost(llm: LLM) -> dict[str, float]:
    """Milliseconds of a pass by the number of tokens it reads."""
    from foreword.model import measure

    return {str(rows): 1000 * seconds for rows, seconds in measure(llm.target).items()}


def _table(cost: dict[str, float]) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("tokens in a pass", "ms", "of one"):
        table.add_column(column, justify="right")
    for rows, milliseconds in cost.items():
        table.add_row(rows, f"{milliseconds:.2f}", f"{milliseconds / cost['1']:.2f}×")
    return table


def _vocabulary(llm: LLM, draft: str) -> tuple[bool, str]:
    from foreword.errors import VocabularyMismatch
    from foreword.model import check_same, load_tokenizer

    try:
        check_same(llm.tokenizer, load_tokenizer(draft))
    except VocabularyMismatch as error:
        return False, str(error)
    return True, "every token has the same id in both"
