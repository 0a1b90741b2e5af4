"""The loop of one call: a borrowed target, what drafts for it, and the rows until their end.

Knows how models are borrowed; knows nothing about transformers' options.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import PreTrainedModel

from foreword.draft import MODEL, PLAIN, usual
from foreword.draft import method as find_method
from foreword.engine import NODES, Engine
from foreword.errors import InvalidRequest
from foreword.hf.drafts import Aid
from foreword.hf.loan import acquaintance, alone, loan
from foreword.model import Mode, Model
from foreword.scheduler import Scheduler
from foreword.types import Sequence
from foreword.verify import rule as find_rule
from foreword.width import Fixed, policy

Prompts = Int[Tensor, "batch prompt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How to guess and how to judge; the same names and meanings as in `foreword.LLM`."""

    drafter: PreTrainedModel | str | Path | None = None
    method: str | None = None
    rule: str = "match"
    width: str | None = None
    nodes: int | None = None
    seed: int | None = None
    tokenizers: tuple[Any, Any] = (None, None)
    """The target's and the draft model's, to translate where they differ."""


@contextmanager
def engine(
    model: PreTrainedModel, speculation: Speculation, rows: list[Sequence], prompts: Prompts
) -> Iterator[Engine]:
    """The loop around a borrowed target, and a draft model that is borrowed too.

    Raises InvalidRequest, or what a method raises, for a draft model that does not fit.
    """
    source = speculation.drafter
    find_rule(speculation.rule)  # a wrong name is refused before the model is borrowed
    if speculation.nodes is not None and not 0 <= speculation.nodes <= NODES:
        raise InvalidRequest(f"nodes must be None or in [0, {NODES}], got {speculation.nodes}")
    decides = policy(speculation.width, speculation.nodes)
    name = speculation.method or usual(source)
    kind = find_method(name)
    borrowed = {one for one in (model, source) if isinstance(one, PreTrainedModel)}
    with ExitStack() as held:
        held.enter_context(alone(*borrowed))
        aid = None
        if source is not None and kind.takes == MODEL:
            known = acquaintance(model)
            aid = Aid.load(source, model, known, speculation.tokenizers)
            refusal = aid.refusal(model, known, prompts)
            if refusal:
                raise refusal.error
        target, known = held.enter_context(loan(model))
        width = Fixed(0) if name == PLAIN else decides(partial(known.cost, target))
        rule = find_rule(speculation.rule, draws=kind.draws, trees=target.mode is Mode.TREE)
        drafter = None
        if aid is not None:
            source = _driven(aid.model, model, target, held)
            drafter = aid.translated(source, known, target, speculation.method, rows[0].tokens)
        drafter = drafter or kind.load(source, target, None)
        yield Engine(target, drafter, rule, width, Scheduler(slots=len(rows)))


def _driven(draft: PreTrainedModel | Model, model: PreTrainedModel, target: Model, held: ExitStack) -> Model:
    """A draft model that can be read. The target itself is on loan already: it needs a second memory only."""
    if draft is model:
        return Model(model, known=target.capability, swaps=[])
    return draft if isinstance(draft, Model) else held.enter_context(loan(draft))[0]


def run(loop: Engine, rows: list[Sequence], streamer: Any) -> None:
    """Write all rows to their end."""
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
