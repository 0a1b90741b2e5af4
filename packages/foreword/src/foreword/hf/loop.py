"""The decoding loop of one call: a borrowed target, its drafter, and the rows."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from foreword.budget import DraftBudget, FixedBudget, policy
from foreword.draft import Drafter, check_seq2seq, method_of
from foreword.draft import method as find_method
from foreword.engine import Engine
from foreword.engine.scheduler import Scheduler
from foreword.hf.borrowed import ModelRecord, borrowed_model, lock_models, model_record
from foreword.hf.draft_models import AssistantModel
from foreword.model import Mode, Model, is_seq2seq
from foreword.model.encoder import EncoderMemory
from foreword.model.loading.in_memory import borrow
from foreword.model.shared_encoder import is_decoder, with_encoder
from foreword.options import DraftingOptions
from foreword.registry import BUDGETS, DEFAULT_RULE, MODEL, PLAIN
from foreword.types import Request
from foreword.verify import rule as find_rule

Prompts = Int[Tensor, "batch prompt"]
Make = Callable[[], DraftBudget]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """What a call of `generate` says about drafting."""

    drafter: PreTrainedModel | str | Path | None = None
    drafting: DraftingOptions = field(default_factory=DraftingOptions)
    seed: int | None = None
    tokenizers: tuple[Any, Any] = (None, None)
    """The target's and the draft's; draft tokens are translated if they differ."""


@contextmanager
def engine(
    model: PreTrainedModel,
    speculation: Speculation,
    rows: list[Request],
    prompts: Prompts,
) -> Iterator[Engine]:
    """Yield an engine around a borrowed target and a borrowed draft model.

    `prompts` are the tokens that the models read first: an encoder-decoder's sources.
    Raises InvalidRequest, or the method's own error, for a draft model that does not
    fit.
    """
    source = speculation.drafter
    drafting = speculation.drafting
    new_budget = policy(drafting.budget, drafting.nodes)
    name = method_of(drafting, source)
    kind = find_method(name)
    if is_seq2seq(model.config):
        check_seq2seq(name, type(model).__name__)
    borrowed = {one for one in (model, source) if isinstance(one, PreTrainedModel)}
    with ExitStack() as held:
        held.enter_context(lock_models(*borrowed))
        assistant = None
        if source is not None and kind.about.takes == MODEL:
            record = model_record(model)
            assistant = AssistantModel.load(
                source, model, record, speculation.tokenizers
            )
            refusal = assistant.refusal(model, record, prompts)
            if refusal:
                raise refusal.error
        target, record = held.enter_context(borrowed_model(model))
        rule = find_rule(
            drafting.rule or DEFAULT_RULE,
            draws=kind.about.draws,
            trees=target.mode is Mode.TREE,
        )
        drafter = None
        if assistant is not None:
            source = _readable(assistant.model, model, target, held)
            drafter = assistant.translated(
                source, record, target, drafting.method, rows[0].tokens
            )
        drafter = drafter or kind.load(source, target, None)
        make = (
            partial(FixedBudget, 0)
            if name == PLAIN
            else partial(new_budget, partial(record.cost, target))
        )
        budget = held.enter_context(
            _budget(speculation, model, record, (name, drafter), make)
        )
        yield Engine(target, drafter, rule, budget, Scheduler(slots=len(rows)))


def _readable(
    draft: PreTrainedModel | Model,
    model: PreTrainedModel,
    target: Model,
    held: ExitStack,
) -> Model:
    """Return a draft model that can run; the target needs only a second cache."""
    if draft is model:
        return target.second()
    if is_decoder(draft, model):
        whole = held.enter_context(
            borrow(with_encoder(draft, model), target.capability)
        )
        # its twin never runs
        ours = whole.backend.memory(EncoderMemory)
        theirs = target.backend.memory(EncoderMemory)
        assert ours is not None
        assert theirs is not None
        ours.encoder = theirs.encoder
        return whole
    return (
        draft
        if isinstance(draft, Model)
        else held.enter_context(borrowed_model(draft))[0]
    )


def _budget(
    speculation: Speculation,
    model: PreTrainedModel,
    record: ModelRecord,
    drafts: tuple[str, Drafter],
    make: Make,
) -> AbstractContextManager[DraftBudget]:
    """Return the draft budget; one by name goes on from the last such call."""
    drafting = speculation.drafting
    rule = drafting.rule or DEFAULT_RULE
    is_named = drafting.budget is None or drafting.budget in BUDGETS
    if drafting.nodes is not None or not is_named:
        return nullcontext(make())
    source, draft = speculation.drafter, model
    if isinstance(source, PreTrainedModel):
        source, draft = None, source
    name, drafter = drafts
    return record.budget(
        draft, (name, type(drafter), str(source), rule, drafting.budget), make
    )


def run(loop: Engine, rows: list[Request], streamer: Any) -> None:
    """Generate all rows to their end."""
    try:
        for row in rows:
            loop.add(row)
        while not loop.idle:
            for delta in loop.step():
                if streamer is not None:
                    for token in delta.tokens:
                        streamer.put(torch.tensor([token]))
    finally:
        for row in rows:
            if row.finish_reason is None:
                loop.abort(row)
