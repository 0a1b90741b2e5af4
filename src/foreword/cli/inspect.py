"""`foreword inspect`: how a model will be driven, why, and what its passes cost. Knows what to ask, decides nothing."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from foreword.cli import options, show
from foreword.cli.bundles import Driving, bundled

if TYPE_CHECKING:
    from rich.table import Table

    from foreword.llm import LLM
    from foreword.model.cost import Cost


@bundled
def inspect(
    model: options.ModelArgument = None,
    *,
    draft: options.DraftName = None,
    loading: Driving,
    as_json: options.AsJson = False,
) -> None:
    """Load a model and say which way it can be driven, why, and what guesses would cost."""
    from foreword import LLM
    from foreword.draft import PLAIN, RETOLD, SHARED, WITH_DRAFT, WITHOUT_DRAFT

    llm = LLM(model, method=PLAIN, **loading.how)
    guessed = WITH_DRAFT if draft is not None or model is None else WITHOUT_DRAFT
    facts = _model(llm, as_json=as_json) | {"default method": guessed}
    if draft is not None:
        same, why = _vocabulary(llm, draft, trusted=loading.trust_remote_code)
        facts |= {"draft": draft, "same vocabulary": same, "vocabulary": why}
        facts["default method"] = guessed if same else f"{SHARED} or {RETOLD}, whichever suits the first text"
    cost = llm.target.cost
    if as_json:
        plain = {name.replace(" ", "_"): value for name, value in facts.items()}
        sys.stdout.write(json.dumps(plain | _milliseconds(cost)) + "\n")
        return
    show.facts(facts)
    show.stdout().print(_table(cost, llm.target.context))


def _model(llm: LLM, *, as_json: bool) -> dict[str, object]:
    from foreword.model.model import NO_LIMIT

    target = llm.target
    return {
        "model": target.name,
        "architecture": type(target.hf).__name__,
        "parameters": target.parameters,
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device),
        "context": target.context if target.context < NO_LIMIT else None if as_json else "no limit",
        "vocabulary size": target.vocab,
        "chat template": bool(llm.tokenizer.chat_template),
        "mode": target.mode.value,
        "way": target.capability.way,
        "why": target.capability.reason,
    }


def _milliseconds(cost: Cost) -> dict[str, object]:
    """Of a pass by the number of tokens it reads, and what a longer text adds; None where that was not measured."""
    longer = _longer(cost)
    return {
        "milliseconds": {str(rows): 1000 * seconds for rows, seconds in cost.seconds.items()},
        "milliseconds_after": cost.context,
        "milliseconds_per_token_of_context": 1000 * cost.per_token if longer else None,
        "milliseconds_per_token_of_context_and_token_read": 1000 * cost.per_token_and_row if longer else None,
    }


def _longer(cost: Cost) -> bool:
    """What a longer text costs was measured, which a short context or a model that cannot go back does not let."""
    return bool(cost.per_token or cost.per_token_and_row)


def _table(cost: Cost, context: int) -> Table:
    from rich.table import Table

    long = min(cost.context + 1000, context - max(cost.seconds))
    table = Table(box=None, padding=(0, 2, 0, 0))
    heads = ["tokens in a pass", "ms", "of one"]
    for column in [*heads, f"ms after {long:,} tokens"] if _longer(cost) else heads:
        table.add_column(column, justify="right")
    for rows, seconds in cost.seconds.items():
        row = [str(rows), f"{1000 * seconds:.2f}", f"{seconds / cost(0):.2f}×"]
        if _longer(cost):
            row.append(f"{1000 * cost(rows - 1, 1, long):.2f}")
        table.add_row(*row)
    return table


def _vocabulary(llm: LLM, draft: str, *, trusted: bool) -> tuple[bool, str]:
    from foreword.errors import VocabularyMismatch
    from foreword.model import check_same, load_tokenizer

    try:
        check_same(llm.tokenizer, load_tokenizer(draft, **({"trust_remote_code": True} if trusted else {})))
    except VocabularyMismatch as error:
        return False, str(error)
    return True, "every token has the same id in both"
