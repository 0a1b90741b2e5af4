"""`foreword.generate`: what transformers calls in place of its own loop, with everything it has prepared.

Knows transformers' `generate`; the loop itself is the engine's.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from foreword.draft import MODEL, PLAIN, usual
from foreword.draft import method as find_method
from foreword.engine import NODES, Engine
from foreword.errors import InvalidRequest
from foreword.hf.loan import alone, loan
from foreword.hf.refusal import refused_input, refused_option, refused_processor
from foreword.hf.row import InPlace, Recorder, StopRules, law, split
from foreword.model import Mode, Model
from foreword.scheduler import Scheduler
from foreword.types import Sequence, Stats
from foreword.verify import rule as find_rule
from foreword.width import Fixed, policy

Prompts = Int[Tensor, "batch prompt"]
Sequences = Int[Tensor, "batch length"]


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """What transformers returns with `return_dict_in_generate`, and what it cost.

    `scores` and `logits` of a row that has ended say: the padding token, with certainty.
    """

    scores: tuple[Tensor, ...] | None = None  # type: ignore[assignment] - theirs says a tuple of one
    logits: tuple[Tensor, ...] | None = None  # type: ignore[assignment]
    stats: tuple[Stats, ...] | None = None
    """One for each row."""
    seeds: tuple[int, ...] | None = None
    """What each row was drawn with; give the first as `seed` to have the same text again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """How to guess and how to judge; the same names and meanings as in `foreword.LLM`."""

    drafter: PreTrainedModel | str | Path | None = None
    method: str | None = None
    rule: str = "match"
    width: str | None = None
    nodes: int | None = None
    seed: int | None = None


def generate(
    model: PreTrainedModel,
    input_ids: Prompts,
    *,
    generation_config: GenerationConfig,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    drafter: PreTrainedModel | str | Path | None = None,
    method: str | None = None,
    rule: str = "match",
    width: str | None = None,
    nodes: int | None = None,
    seed: int | None = None,
    streamer: Any = None,
    assistant_model: PreTrainedModel | None = None,
    **model_kwargs: Any,
) -> Sequences | SpeculativeOutput:
    """Speculative decoding for `model.generate(**inputs, custom_generate=foreword.generate, drafter=…)`.

    drafter: a smaller model in memory, a folder or a hub id; without one the text itself is searched for guesses.
    method, rule, width, nodes: as in `foreword.LLM`.  seed: without one it is drawn from torch's global generator, so
        `torch.manual_seed` fixes the text; rows are drawn with seed, seed + 1, …  All else is transformers' own.

    Returns Int64[batch, length], prompts included and padded on the right, or with `return_dict_in_generate` a
    SpeculativeOutput. Greedy text is that of transformers; sampled text follows the same law, and is the same for
    every drafter. The model is given back as it was, and cannot be used by other threads meanwhile. Processors are
    called once for each guess, with its own path: they must be functions of what they are given.

    Raises InvalidRequest, before any work starts, for options that cannot be served exactly. transformers keeps
    `tokenizer` from a callable: for stop strings pass a StopStringCriteria, or use `foreword.enable`.
    """
    left_streamer, left_assistant = _left_behind(model)
    streamer = left_streamer if streamer is None else streamer
    drafter = next((given for given in (drafter, assistant_model, left_assistant) if given is not None), None)
    speculation = Speculation(drafter=drafter, method=method, rule=rule, width=width, nodes=nodes, seed=seed)
    job = _Job(input_ids, generation_config, logits_processor or [], stopping_criteria or [], streamer)
    try:
        job.check(model, model_kwargs)
        rows = job.rows(model_kwargs.get("attention_mask"), speculation)
        with _engine(model, speculation, len(rows)) as engine:
            _run(engine, rows, streamer)
    finally:
        if streamer is not None:
            streamer.end()
    return job.output(rows)


@dataclass(frozen=True, slots=True)
class _Job:
    """One call of transformers' `generate`, as it arrives."""

    prompts: Prompts
    config: GenerationConfig
    processors: list[Any]
    criteria: list[Any]
    streamer: Any

    def check(self, model: PreTrainedModel, inputs: dict[str, Any]) -> None:
        """Raise InvalidRequest for what cannot be served."""
        reason = refused_input(model, inputs) or refused_option(lambda name: getattr(self.config, name, None))
        reason = reason or refused_processor(self.processors)
        if reason is None and self.streamer is not None and len(self.prompts) > 1:
            reason = f"a streamer reads one text, and there are {len(self.prompts)} rows; stream them one by one"
        if reason:
            raise InvalidRequest(reason)

    def rows(self, mask: Tensor | None, speculation: Speculation) -> list[Sequence]:
        """One sequence for each row, without its padding."""
        width = self.prompts.shape[1]
        ends = [c for c in self.criteria if type(c) is EosTokenCriteria]
        eos = frozenset(int(token) for criterion in ends for token in criterion.eos_token_id)
        limit = min((c.max_length for c in self.criteria if isinstance(c, MaxLengthCriteria)), default=width) - width
        if limit < 1:
            raise InvalidRequest("there is no room for a new token; set max_new_tokens to at least 1")
        others = [c for c in self.criteria if c not in ends and not isinstance(c, MaxLengthCriteria)]
        kept, filters = split(self.processors)
        rows = []
        for row, seed in enumerate(_seeds(len(self.prompts), speculation.seed, bool(self.config.do_sample))):
            prompt = self.prompts[row : row + 1]
            tokens = prompt[0] if mask is None else _unpadded(prompt[0], mask[row])
            pads = prompt[:, : width - len(tokens)]
            processors = [InPlace(processor, pads, row, len(self.prompts)) for processor in kept]
            params = law(processors, dict(filters), sample=bool(self.config.do_sample), limit=limit)
            recorder = None
            if self.config.return_dict_in_generate and (self.config.output_scores or self.config.output_logits):
                recorder = Recorder(params, len(tokens))
                params = recorder.around(params)
            reader = StopRules(prompt, limit, eos, others, recorder)
            rows.append(Sequence(row, tokens.tolist(), len(tokens), params, seed, reader=reader))
        return rows

    def output(self, rows: list[Sequence]) -> Sequences | SpeculativeOutput:
        """What transformers would return."""
        written = [row.tokens[row.prompt :] for row in rows]
        longest = max(map(len, written))
        pad = self._pad(min(map(len, written)) < longest)
        ends = [[*tokens, *[pad] * (longest - len(tokens))] for tokens in written]
        sequences = torch.cat([self.prompts, self.prompts.new_tensor(ends)], dim=1)
        if not self.config.return_dict_in_generate:
            return sequences
        recorders = [row.reader.recorder for row in rows if isinstance(row.reader, StopRules) and row.reader.recorder]
        scores = _steps([recorder.scores for recorder in recorders], longest, pad)
        logits = _steps([recorder.logits for recorder in recorders], longest, pad)
        return SpeculativeOutput(
            sequences=sequences,  # type: ignore[arg-type]
            scores=scores if self.config.output_scores else None,
            logits=logits if self.config.output_logits else None,
            stats=tuple(row.stats for row in rows),
            seeds=tuple(row.seed for row in rows),
        )

    def _pad(self, needed: bool) -> int:
        token = getattr(self.config, "_pad_token_tensor", None)
        if token is None and needed:
            raise InvalidRequest("rows ended at different lengths and there is no padding token; set pad_token_id")
        return 0 if token is None else int(token)


def _left_behind(model: PreTrainedModel) -> tuple[Any, PreTrainedModel | None]:
    """transformers hands a callable neither `streamer` nor `assistant_model`; its own frame still has them.

    Without this a streamer would be fed the prompt and then nothing, and its reader would wait for ever.
    """
    code = inspect.unwrap(vars(GenerationMixin)["generate"]).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    given = frame.f_locals if frame is not None else {}
    return (given.get("streamer"), given.get("assistant_model")) if given.get("self") is model else (None, None)


def _seeds(count: int, seed: int | None, sample: bool) -> list[int]:
    """Greedy text needs no seed, and takes nothing from torch's generator."""
    if seed is None:
        seed = int(torch.randint(2**63 - 1, ())) if sample else 0
    if not 0 <= seed < 2**63:
        raise InvalidRequest(f"seed must be None or in [0, 2**63), got {seed}")
    return [(seed + row) % 2**63 for row in range(count)]


def _unpadded(tokens: Int[Tensor, "length"], mask: Shaped[Tensor, "length"]) -> Int[Tensor, "kept"]:
    """What the model may see; a masked token has no position either, so it may stand anywhere but at the end."""
    if not mask[-1]:
        raise InvalidRequest("the prompts are padded on the right; set tokenizer.padding_side = 'left'")
    return tokens[mask.bool()]


@contextmanager
def _engine(model: PreTrainedModel, speculation: Speculation, rows: int) -> Iterator[Engine]:
    """The loop around a borrowed target, and a draft model that is borrowed too."""
    source = speculation.drafter
    find_rule(speculation.rule)  # a wrong name is refused before the model is borrowed
    if speculation.nodes is not None and not 0 <= speculation.nodes <= NODES:
        raise InvalidRequest(f"nodes must be None or in [0, {NODES}], got {speculation.nodes}")
    decides = policy(speculation.width, speculation.nodes)
    name = speculation.method or usual(source)
    kind = find_method(name)
    borrowed = {one for one in (model, source) if isinstance(one, PreTrainedModel)}
    with alone(*borrowed), loan(model) as (target, known):
        width = Fixed(0) if name == PLAIN else decides(partial(known.cost, target))
        rule = find_rule(speculation.rule, draws=kind.draws, trees=target.mode is Mode.TREE)
        if source is model:
            # On loan already: a second memory of its own is all that it needs to guess for itself.
            source = Model(model, known=target.capability, swaps=[])
        if isinstance(source, PreTrainedModel):
            with loan(source) as (small, _):
                yield Engine(target, kind.load(small, target, None), rule, width, Scheduler(slots=rows))
            return
        if isinstance(source, str | Path) and kind.takes == MODEL:
            source = known.draft(str(source), target)
        yield Engine(target, kind.load(source, target, None), rule, width, Scheduler(slots=rows))


def _run(engine: Engine, rows: list[Sequence], streamer: Any) -> None:
    try:
        for row in rows:
            engine.add(row)
        while not engine.idle:
            for delta in engine.step():
                if streamer is not None:
                    for token in delta.tokens:
                        streamer.put(torch.tensor([token]))
    finally:
        for row in rows:
            if row.finish_reason is None:
                engine.abort(row)


def _steps(rows: list[list[Tensor]], length: int, pad: int) -> tuple[Tensor, ...]:
    """Scores of each step, Float32[batch, vocab]; none where nobody recorded them."""
    steps = []
    for at in range(length if rows else 0):
        shape = next(row[at] for row in rows if at < len(row))
        ended = torch.full_like(shape, -torch.inf)
        ended[:, pad] = 0.0
        steps.append(torch.cat([row[at] if at < len(row) else ended for row in rows]))
    return tuple(steps)
