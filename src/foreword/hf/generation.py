"""`foreword.generate`: what transformers calls in place of its own loop, with everything it has prepared.

Knows transformers' `generate`; the loop itself is the engine's.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from foreword.errors import InvalidRequest
from foreword.hf.loop import Prompts, Speculation, engine, run
from foreword.hf.refusal import Call, check_names
from foreword.hf.row import InPlace, Recorder, StopRules, law, split
from foreword.types import Sequence, Stats

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
    tokenizer: Any = None,
    assistant_tokenizer: Any = None,
    **model_kwargs: Any,
) -> Sequences | SpeculativeOutput:
    """Speculative decoding for `model.generate(**inputs, custom_generate=foreword.generate, drafter=…)`.

    drafter: a smaller model in memory, a folder or a hub id; without one the text itself is searched for guesses.
    method, rule, width, nodes: as in `foreword.LLM`.  seed: without one it is drawn from torch's global generator, so
        `torch.manual_seed` fixes the text; rows are drawn with seed, seed + 1, …
    tokenizer, assistant_tokenizer: the target's and the drafter's; where they differ, draft tokens are translated.
        transformers keeps both from a callable: bind them, `custom_generate=functools.partial(foreword.generate, …)`.
    All else is transformers' own.

    Returns Int64[batch, length], prompts included and padded on the right, or with `return_dict_in_generate` a
    SpeculativeOutput. Greedy text is that of transformers; sampled text follows the same law, and is the same for
    every drafter. The model is given back as it was, and cannot be used by other threads meanwhile. Processors are
    called once for each guess, with its own path: they must be functions of what they are given.

    Raises InvalidRequest, before any work starts, for options that cannot be served exactly. transformers keeps
    `tokenizer` from a callable: for stop strings pass a StopStringCriteria, or use `foreword.enable`.
    """
    left = _left_behind(model)
    streamer = left.get("streamer") if streamer is None else streamer
    drafter = next((one for one in (drafter, assistant_model, left.get("assistant_model")) if one is not None), None)
    names = (tokenizer, assistant_tokenizer)
    speculation = Speculation(
        drafter=drafter, method=method, rule=rule, width=width, nodes=nodes, seed=seed, tokenizers=names
    )
    job = _Job(input_ids, generation_config, logits_processor or [], stopping_criteria or [], streamer)
    try:
        check_names(model, model_kwargs, inspect.signature(generate).parameters)
        job.check(model, model_kwargs | {"synced_gpus": left.get("synced_gpus")})
        return job.run(model, model_kwargs.get("attention_mask"), speculation)
    finally:
        if streamer is not None:
            streamer.end()


def serve(
    model: PreTrainedModel,
    input_ids: Prompts,
    *,
    generation_config: GenerationConfig,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    speculation: Speculation,
    streamer: Any = None,
    **model_kwargs: Any,
) -> Sequences | SpeculativeOutput:
    """`generate` for a call that was looked at before transformers prepared it."""
    job = _Job(input_ids, generation_config, logits_processor, stopping_criteria, streamer)
    try:
        return job.run(model, model_kwargs.get("attention_mask"), speculation)
    finally:
        if streamer is not None:
            streamer.end()


@dataclass(frozen=True, slots=True)
class _Job:
    """One call of transformers' `generate`, as it arrives."""

    prompts: Prompts
    config: GenerationConfig
    processors: list[Any]
    criteria: list[Any]
    streamer: Any

    def __post_init__(self) -> None:
        """Whoever called may go on changing what was given."""
        object.__setattr__(self, "config", copy.deepcopy(self.config))
        object.__setattr__(self, "processors", list(self.processors))
        object.__setattr__(self, "criteria", list(self.criteria))

    def check(self, model: PreTrainedModel, inputs: dict[str, Any]) -> None:
        """Raise InvalidRequest for what cannot be served."""
        synced, mask = inputs.pop("synced_gpus"), inputs.get("attention_mask")
        setting = {"synced_gpus": synced}.get
        mask = torch.ones_like(self.prompts) if mask is None else mask
        call = Call(
            model=model,
            setting=lambda name: getattr(self.config, name, None) or setting(name),
            inputs=inputs | {"input_ids": self.prompts, "attention_mask": mask},
            processors=self.processors,
            criteria=self.criteria,
            ends=any(hasattr(criterion, "eos_token_id") for criterion in self.criteria),
            stops=any(not isinstance(one, MaxLengthCriteria | EosTokenCriteria) for one in self.criteria),
            streamer=self.streamer,
            vouched=True,
        )
        refusal = call.refusal()
        if refusal:
            raise refusal.error

    def run(
        self, model: PreTrainedModel, mask: Tensor | None, speculation: Speculation
    ) -> Sequences | SpeculativeOutput:
        """Generate."""
        rows = self.rows(mask, speculation)
        with engine(model, speculation, rows, self.prompts) as loop:
            run(loop, rows, self.streamer)
        return self.output(rows)

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
            tokens = prompt[0] if mask is None else prompt[0][mask[row].bool()]
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
        new = torch.tensor(ends, dtype=torch.int64, device=self.prompts.device)
        sequences = torch.cat([self.prompts, new], dim=1)
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


def _left_behind(model: PreTrainedModel) -> dict[str, Any]:
    """transformers keeps `streamer`, `assistant_model` and `synced_gpus` from a callable; its own frame has them.

    Without this a streamer would be fed the prompt and then nothing, and its reader would wait for ever.
    """
    code = inspect.unwrap(vars(GenerationMixin)["generate"]).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    given = frame.f_locals if frame is not None else {}
    return dict(given) if given.get("self") is model else {}


def _seeds(count: int, seed: int | None, sample: bool) -> list[int]:
    """Greedy text needs no seed, and takes nothing from torch's generator."""
    if seed is None:
        seed = int(torch.randint(2**63 - 1, ())) if sample else 0
    if not 0 <= seed < 2**63:
        raise InvalidRequest(f"seed must be None or in [0, 2**63), got {seed}")
    return [(seed + row) % 2**63 for row in range(count)]


def _steps(rows: list[list[Tensor]], length: int, pad: int) -> tuple[Tensor, ...]:
    """Scores of each step, Float32[batch, vocab]; none where nobody recorded them."""
    steps = []
    for at in range(length if rows else 0):
        shape = next(row[at] for row in rows if at < len(row))
        ended = torch.full_like(shape, -torch.inf)
        ended[:, pad] = 0.0
        steps.append(torch.cat([row[at] if at < len(row) else ended for row in rows]))
    return tuple(steps)
