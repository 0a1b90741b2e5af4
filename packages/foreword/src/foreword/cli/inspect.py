"""`foreword inspect`: a model's backend, its reason, and the cost of forwards."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from foreword.cli.common import early, options, render
from foreword.cli.common.bundles import bundled
from foreword.cli.common.tables import BARE, Column, Table
from foreword.options import ModelOptions, keywords
from foreword.registry import AUTO, HEAD_METHODS, PLAIN, SHARED_TEXT, SHARED_TOKENS

if TYPE_CHECKING:
    from foreword.api.llm import LLM
    from foreword.model.cost import Cost


@bundled
def inspect(
    model: options.ModelArgument = None,
    *,
    target: options.ModelName = None,
    draft: options.DraftName = None,
    loading: ModelOptions,
    as_json: options.AsJson = False,
) -> None:
    """Load a model and show its backend, the reason for it, and the cost of draft
    tokens.
    """
    model = early.either(model, target, "--model")
    from foreword import LLM
    from foreword import bundled as models
    from foreword.draft import resolved

    forms = {"weights": loading.weights, "kv": loading.kv}
    plain = replace(loading, weights=None, kv=None)
    if loading.offload_folder is not None:
        # The weights in bfloat16, to compare with, may not fit in memory.
        forms, plain = {}, loading
    llm = LLM(model, method=PLAIN, **keywords(plain))
    apart = _quantized(llm, **forms) if any(forms.values()) else {}
    source = draft or (models.draft() if model is None else None)
    default = resolved(AUTO, source, model)
    facts = _model(llm, as_json=as_json) | {"default method": default}
    if draft is not None and (head := _head(llm, draft)):
        facts |= head
    elif draft is not None:
        same, why = _vocabulary(llm, draft, trusted=loading.trust_remote_code)
        facts |= {"draft": draft, "same vocabulary": same, "vocabulary": why}
        if not same:
            either = f"{SHARED_TOKENS} or {SHARED_TEXT}, chosen by the first request"
            facts["translated by"] = either
    cost = llm.target.cost
    if as_json:
        plain = {name.replace(" ", "_"): value for name, value in facts.items()}
        sys.stdout.write(json.dumps(plain | apart | _milliseconds(cost)) + "\n")
        return
    if apart:
        shown = {name: f"{nats:.5f}" for name, nats in apart["kl_divergence"].items()}
        facts |= {"KL divergence, nats a token": shown}
    render.facts(facts)
    render.stdout().print(_table(cost, llm.target.context))


def _model(llm: "LLM", *, as_json: bool) -> dict[str, object]:
    from foreword.model.model import NO_LIMIT

    target = llm.target
    return {
        "model": target.name,
        "architecture": type(target.hf).__name__,
        "parameters": target.parameters,
        "dtype": str(target.dtype).removeprefix("torch."),
        **target.forms,
        "device": str(target.device),
        "context": target.context
        if target.context < NO_LIMIT
        else None
        if as_json
        else "no limit",
        "vocabulary size": target.vocab,
        "chat template": bool(llm.tokenizer.chat_template),
        "mode": target.mode.value,
        "backend": target.capability.backend,
        "why": target.capability.reason,
    }


def _quantized(
    llm: "LLM", weights: str | None, kv: str | None
) -> dict[str, dict[str, float]]:
    """Quantize the target; return its KL divergence from what it was, by domain, and
    with `kv` in long texts too.
    """
    from foreword.cli.common.divergence import divergence
    from foreword.model.executors.registry import NATIVE
    from foreword.model.view import view

    target = llm.target
    if target.capability.backend != NATIVE:
        target.quantize(weights, kv)  # raises the error
    bits = {None: 16, "int8": 8, "int4": 4}[weights]
    other = view(target, bits=bits, kv=kv)
    divergences = divergence(target, other, partial(_tokens, llm), long=kv is not None)
    target.quantize(weights, kv)
    return {"kl_divergence": divergences}


def _tokens(llm: "LLM", messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Return a prompt's tokens, in the chat template of the model if it has one."""
    from foreword.chats.prompts import ids_of

    if llm.tokenizer.chat_template:
        return ids_of(llm.render(messages))
    return list(llm.tokenizer(messages[-1]["content"])["input_ids"])


def _milliseconds(cost: "Cost") -> dict[str, object]:
    """Return the milliseconds of a pass by tokens read, and per token of context; None
    if not measured.
    """
    measured = _context_measured(cost)
    return {
        "milliseconds": {
            str(rows): 1000 * seconds for rows, seconds in cost.seconds.items()
        },
        "milliseconds_after": cost.context,
        "milliseconds_per_token_of_context": 1000 * cost.per_token
        if measured
        else None,
        "milliseconds_per_sequence": 1000 * cost.per_sequence,
        "milliseconds_per_token_of_context_and_token_read": 1000
        * cost.per_token_and_row
        if measured
        else None,
    }


def _context_measured(cost: "Cost") -> bool:
    """Return whether the cost of context was measured; a short context or a model
    without rollback prevents it.
    """
    return bool(cost.per_token or cost.per_token_and_row)


def _table(cost: "Cost", context: int) -> Table[int]:
    long = min(cost.context + 1000, context - max(cost.seconds))
    columns = [
        Column[int]("tokens read", str),
        Column[int]("ms", lambda rows: f"{1000 * cost.seconds[rows]:.2f}"),
        Column[int](
            "vs. one token", lambda rows: f"{cost.seconds[rows] / cost(0):.2f}×"
        ),
    ]
    if _context_measured(cost):
        after = Column[int](
            f"ms after {long:,} tokens",
            lambda rows: f"{1000 * cost(rows - 1, 1, long):.2f}",
        )
        columns.append(after)
    look = replace(BARE, header_style="table.header")
    return Table(list(cost.seconds), columns, look=look)


def _head(llm: "LLM", draft: str) -> dict[str, object]:
    """Load a trained head and return what its config says; empty for a draft model."""
    from foreword.draft import default_method, method
    from foreword.draft.heads.loading import trained_for

    name = default_method(draft)
    if name not in HEAD_METHODS.values():
        return {}
    drafter = method(name).load(draft, llm.target, llm.tokenizer)
    return {
        "draft": draft,
        "trained for": trained_for(draft) or "not named",
        "reads hidden states": list(drafter.hidden_layers),
    }


def _vocabulary(llm: "LLM", draft: str, *, trusted: bool) -> tuple[bool, str]:
    from foreword.errors import VocabularyMismatch
    from foreword.model import check_same, load_tokenizer

    try:
        check_same(
            llm.tokenizer,
            load_tokenizer(draft, **({"trust_remote_code": True} if trusted else {})),
        )
    except VocabularyMismatch as error:
        return False, str(error)
    return True, "every token has the same id in both"
