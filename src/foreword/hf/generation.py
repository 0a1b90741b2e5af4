"""`foreword.generate`: the callable that transformers runs in place of its own decoding
loop.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
)
from transformers.generation.utils import GenerateEncoderDecoderOutput

from foreword.errors import InvalidRequest
from foreword.hf.adapters import (
    PaddedProcessor,
    Recorder,
    StopRules,
    distribution,
    split,
)
from foreword.hf.inputs import copied_source, unpadded
from foreword.hf.loop import Prompts, Speculation, engine, run
from foreword.hf.outputs import SpeculativeOutput, SpeculativeSeq2SeqOutput, steps
from foreword.hf.pictures import as_given, image_rows_of, picture_inputs
from foreword.hf.refusal import not_a_call
from foreword.hf.unsupported import Call, check_names
from foreword.model import is_seq2seq, is_speech
from foreword.model.vision.rows import ImageRows
from foreword.options import DraftingOptions
from foreword.types import Features, Request, Source

Output = (
    Int[Tensor, "batch length"]
    | SpeculativeOutput
    | SpeculativeSeq2SeqOutput
    | GenerateEncoderDecoderOutput
)


def generate(
    model: PreTrainedModel,
    input_ids: Prompts | None = None,
    *,
    generation_config: GenerationConfig | None = None,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    drafter: PreTrainedModel | str | Path | None = None,
    method: str | None = None,
    rule: str = "match",
    budget: str | None = None,
    nodes: int | None = None,
    seed: int | None = None,
    streamer: Any = None,
    assistant_model: PreTrainedModel | None = None,
    tokenizer: Any = None,
    assistant_tokenizer: Any = None,
    inputs_tensor: Tensor | None = None,
    **model_kwargs: Any,
) -> Output:
    """Speculative decoding for `model.generate(**inputs,
    custom_generate=foreword.generate, drafter=…)`.

    drafter: a smaller model in memory, a folder or a hub id; without one the text
        itself is searched for draft tokens.
    method, rule, budget, nodes: as in `foreword.LLM`. seed: by default drawn from
        torch's global generator, so
        `torch.manual_seed` fixes the text; rows use seed, seed + 1, …
    tokenizer, assistant_tokenizer: the target's and the drafter's; where they differ,
        draft tokens are translated.
        transformers does not pass them to a callable: bind them,
        `custom_generate=functools.partial(foreword.generate, …)`.
    inputs_tensor: the source of an encoder-decoder, which transformers gives to a
        callable; `input_ids` are then what
        its decoder begins with.
    All other arguments mean what they mean in transformers.

    Returns Int64[batch, length], prompts included and padded on the right, or with
    `return_dict_in_generate` a SpeculativeOutput, of an encoder-decoder a
    SpeculativeSeq2SeqOutput. Greedy text is that of transformers; sampled text has the
    same distribution, and is the same for every drafter. The model is returned
    unchanged, and other threads cannot use it meanwhile. Processors are called once per
    draft token, with its own path: they must be pure functions of their arguments.

    Raises InvalidRequest, before any work starts, for options that cannot be served
    exactly. transformers does not pass `tokenizer` to a callable: for stop strings pass
    a StopStringCriteria, or use `foreword.enable`.
    """
    if input_ids is None or generation_config is None:
        raise not_a_call(model)
    frame_locals = _generate_locals(model)
    streamer = frame_locals.get("streamer") if streamer is None else streamer
    models = (drafter, assistant_model, frame_locals.get("assistant_model"))
    drafter = next((one for one in models if one is not None), None)
    names = (tokenizer, assistant_tokenizer)
    speculation = Speculation(
        drafter=drafter,
        drafting=DraftingOptions(method=method, rule=rule, budget=budget, nodes=nodes),
        seed=seed,
        tokenizers=names,
    )
    source = _source(model, input_ids, inputs_tensor)
    features = _features(model, source, model_kwargs.get("encoder_outputs"))
    processors, criteria = logits_processor or [], stopping_criteria or []
    given = frame_locals.get("kwargs", model_kwargs)
    pictures = picture_inputs(model, given)
    # transformers has put what its vision tower made of them in their place
    if pictures:
        model_kwargs = as_given(model_kwargs, given) | pictures
    job = _Job(
        input_ids, source, generation_config, processors, criteria, streamer, features
    )
    # transformers has run the encoder already; only states that the caller gave are
    # refused.
    states = given.get("encoder_outputs") if frame_locals else None
    try:
        check_names(model, model_kwargs, inspect.signature(generate).parameters)
        inputs = model_kwargs | {
            "encoder_outputs": states,
            "synced_gpus": frame_locals.get("synced_gpus"),
        }
        job.check(model, inputs)
        if pictures:
            job = replace(job, images=image_rows_of(model, input_ids, pictures))
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
    images: ImageRows | None = None,
    inputs_tensor: Tensor | None = None,
    **model_kwargs: Any,
) -> Output:
    """Serve a call that was checked before transformers prepared it."""
    source = _source(model, input_ids, inputs_tensor)
    features = _features(model, source, None)
    job = _Job(
        input_ids,
        source,
        generation_config,
        logits_processor,
        stopping_criteria,
        streamer,
        features,
        images,
    )
    try:
        return job.run(model, model_kwargs.get("attention_mask"), speculation)
    finally:
        if streamer is not None:
            streamer.end()


@dataclass(frozen=True, slots=True)
class _Job:
    """One call of transformers' `generate`, with its arguments."""

    prompts: Prompts
    source: Tensor | None
    """What the encoder of an encoder-decoder reads, one row for each prompt."""
    config: GenerationConfig
    processors: list[Any]
    criteria: list[Any]
    streamer: Any
    features: tuple[Features, ...] = ()
    """The windows of sound in `source`, where its model reads sound."""
    images: ImageRows | None = None
    """Of the only prompt."""

    def __post_init__(self) -> None:
        """Copy the arguments, since the caller may change them meanwhile."""
        object.__setattr__(self, "config", copy.deepcopy(self.config))
        object.__setattr__(self, "processors", list(self.processors))
        object.__setattr__(self, "criteria", list(self.criteria))

    def check(self, model: PreTrainedModel, inputs: dict[str, Any]) -> None:
        """Raise InvalidRequest if the call cannot be served."""
        synced, mask = inputs.pop("synced_gpus"), inputs.get("attention_mask")
        setting = {"synced_gpus": synced}.get
        if self.source is not None:
            inputs |= {
                model.main_input_name: self.source,
                "decoder_input_ids": self.prompts,
            }
        else:
            inputs |= {"input_ids": self.prompts}
            inputs["attention_mask"] = (
                torch.ones_like(self.prompts) if mask is None else mask
            )
        call = Call(
            model=model,
            setting=lambda name: getattr(self.config, name, None) or setting(name),
            inputs=inputs,
            processors=self.processors,
            criteria=self.criteria,
            ends=any(hasattr(criterion, "eos_token_id") for criterion in self.criteria),
            stops=any(
                not isinstance(one, MaxLengthCriteria | EosTokenCriteria)
                for one in self.criteria
            ),
            streamer=self.streamer,
            explicit=True,
        )
        refusal = call.refusal()
        if refusal:
            raise refusal.error

    def run(
        self, model: PreTrainedModel, mask: Tensor | None, speculation: Speculation
    ) -> Output:
        """Generate all rows and return the output."""
        rows = self.rows(mask, speculation)
        read = self.prompts if self.source is None or self.features else self.source
        with engine(model, speculation, rows, read) as loop:
            run(loop, rows, self.streamer)
        return self.output(rows)

    def rows(self, mask: Tensor | None, speculation: Speculation) -> list[Request]:
        """Return one sequence per row, without its padding."""
        length = self.prompts.shape[1]
        ends = [c for c in self.criteria if type(c) is EosTokenCriteria]
        eos = frozenset(
            int(token) for criterion in ends for token in criterion.eos_token_id
        )
        limit = (
            min(
                (
                    c.max_length
                    for c in self.criteria
                    if isinstance(c, MaxLengthCriteria)
                ),
                default=length,
            )
            - length
        )
        if limit < 1:
            raise InvalidRequest(
                "cannot generate: the maximum length leaves no room for a new token. "
                "Set 'max_new_tokens' to at least 1"
            )
        others = [
            c
            for c in self.criteria
            if c not in ends and not isinstance(c, MaxLengthCriteria)
        ]
        remaining, filters = split(self.processors)
        rows = []
        source = None if self.features else self.source
        texts = unpadded(self.prompts, source, None if self.features else mask)
        for row, seed in enumerate(
            _seeds(len(self.prompts), speculation.seed, bool(self.config.do_sample))
        ):
            prompt, (tokens, own) = self.prompts[row : row + 1], texts[row]
            padding = prompt[:, : length - len(tokens)]
            processors = [
                PaddedProcessor(processor, padding, row, len(self.prompts))
                for processor in remaining
            ]
            params = distribution(
                processors,
                dict(filters),
                sample=bool(self.config.do_sample),
                limit=limit,
            )
            recorder = None
            if self.config.return_dict_in_generate and (
                self.config.output_scores or self.config.output_logits
            ):
                recorder = Recorder(params, len(tokens))
                params = recorder.wrap(params)
            reader = StopRules(prompt, limit, eos, others, recorder)
            features = self.features[row] if self.features else None
            rows.append(
                Request(
                    row,
                    tokens,
                    len(tokens),
                    params,
                    seed,
                    reader=reader,
                    source=Source(own),
                    images=self.images,
                    features=features,
                )
            )
        return rows

    def output(self, rows: list[Request]) -> Output:
        """Return the output in the form of transformers."""
        emitted = [row.tokens[row.prompt :] for row in rows]
        longest = max(map(len, emitted))
        pad = self._pad(min(map(len, emitted)) < longest)
        ends = [[*tokens, *[pad] * (longest - len(tokens))] for tokens in emitted]
        new = torch.tensor(ends, dtype=torch.int64, device=self.prompts.device)
        sequences = torch.cat([self.prompts, new], dim=1)
        if not self.config.return_dict_in_generate:
            return sequences
        recorders = [
            row.reader.recorder
            for row in rows
            if isinstance(row.reader, StopRules) and row.reader.recorder
        ]
        scores = steps([recorder.scores for recorder in recorders], longest, pad)
        logits = steps([recorder.logits for recorder in recorders], longest, pad)
        shown: dict[str, Any] = dict(
            sequences=sequences,
            scores=scores if self.config.output_scores else None,
            logits=logits if self.config.output_logits else None,
        )
        # speech models go on with this output, and expect nothing else in it
        if self.features:
            return GenerateEncoderDecoderOutput(**shown)
        kind = SpeculativeOutput if self.source is None else SpeculativeSeq2SeqOutput
        return kind(
            **shown,
            stats=tuple(row.stats for row in rows),
            seeds=tuple(row.seed for row in rows),
        )

    def _pad(self, needed: bool) -> int:
        token = getattr(self.config, "_pad_token_tensor", None)
        if token is None and needed:
            raise InvalidRequest(
                "cannot pad rows of different lengths: the padding token is not set. "
                "Set 'pad_token_id'"
            )
        return 0 if token is None else int(token)


def _generate_locals(model: PreTrainedModel) -> dict[str, Any]:
    """Return the local variables of the calling `generate` frame of transformers; empty
    if there is none.

    transformers does not pass `streamer`, `assistant_model` and `synced_gpus` to a
    callable. Without the streamer its reader would get the prompt and then wait for
    ever.
    """
    code = inspect.unwrap(vars(GenerationMixin)["generate"]).__code__
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    values = frame.f_locals if frame is not None else {}
    return dict(values) if values.get("self") is model else {}


def _source(
    model: PreTrainedModel, prompts: Prompts, inputs: Tensor | None
) -> Tensor | None:
    """Return what the encoder reads for each prompt; None for a decoder-only model."""
    if not is_seq2seq(model.config):
        return None
    if inputs is None:
        raise InvalidRequest(
            f"cannot generate: {type(model).__name__} is an encoder-decoder, and got "
            "no source. Call "
            "model.generate(..., custom_generate=foreword.generate), or give "
            "'inputs_tensor'"
        )
    return copied_source(inputs, len(prompts))


def _features(
    model: PreTrainedModel, source: Tensor | None, states: Any
) -> tuple[Features, ...]:
    """Return the windows of sound in a source; of one window alone, with the states
    that transformers has computed.
    """
    if source is None or not is_speech(model):
        return ()
    windows = tuple(map(Features, source))
    if len(windows) == 1 and states is not None:
        windows[0].outputs[model.get_encoder()] = states
    return windows


def _seeds(count: int, seed: int | None, sample: bool) -> list[int]:
    """Return one seed per row; greedy rows take nothing from torch's generator."""
    if seed is None:
        seed = int(torch.randint(2**63 - 1, ())) if sample else 0
    if not 0 <= seed < 2**63:
        raise InvalidRequest(
            f"cannot use 'seed' {seed}: it is out of range. Give None, or an integer "
            "in [0, 2**63)"
        )
    return [(seed + row) % 2**63 for row in range(count)]
