"""`foreword.generate`: what transformers runs in place of its decoding loop."""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)

from foreword.errors import InvalidRequest
from foreword.hf.inputs import copied_source
from foreword.hf.job import Job, Output
from foreword.hf.loop import Prompts, Speculation
from foreword.hf.own_drafts import own_draft
from foreword.hf.pictures import as_given, image_rows_of, picture_inputs
from foreword.hf.refusal import not_a_call
from foreword.hf.unsupported import check_names
from foreword.model import is_seq2seq
from foreword.model.seq2seq import is_speech
from foreword.model.vision.rows import ImageRows
from foreword.options import DraftingOptions
from foreword.types import Features


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
    """Generate as transformers does, drafted: `model.generate(**inputs,
    custom_generate=foreword.generate, drafter=…)`.

    Greedy text is that of transformers; sampled text has the same distribution, and is
    the same for every drafter. The model is returned unchanged, and other threads
    cannot use it meanwhile. Processors are called once per draft token, with its own
    path: they must be pure functions of their arguments.

    Args:
        model: The model whose `generate` was called.
        input_ids: Int64[batch, length], the prompts, padded on the left.
        generation_config: As in transformers.
        logits_processor: As in transformers.
        stopping_criteria: As in transformers.
        drafter: Smaller model in memory, folder or hub id. Without one the text itself
            is searched for draft tokens, or with `assistant_early_exit` or `use_mtp`
            the model's own layers draft.
        method: As in `foreword.LLM`.
        rule: As in `foreword.LLM`.
        budget: As in `foreword.LLM`.
        nodes: As in `foreword.LLM`.
        seed: Of the first row; others follow from it. Default: drawn from torch's
            global generator, so `torch.manual_seed` fixes the text.
        streamer: As in transformers.
        assistant_model: Another name for `drafter`.
        tokenizer: The target's tokenizer. transformers does not pass it to a callable:
            bind it, `custom_generate=functools.partial(foreword.generate, …)`, and
            for stop strings pass a StopStringCriteria, or use `foreword.enable`.
        assistant_tokenizer: The drafter's tokenizer; where the two differ, draft
            tokens are translated.
        inputs_tensor: Source of an encoder-decoder, which transformers gives to a
            callable; `input_ids` are then what its decoder begins with.
        **model_kwargs: As in transformers.

    Returns:
        Int64[batch, length], prompts included and padded on the right. With
            `return_dict_in_generate` a SpeculativeOutput, of an encoder-decoder a
            SpeculativeSeq2SeqOutput.

    Raises:
        InvalidRequest: Options that cannot be served exactly; no work has started.
    """
    if input_ids is None or generation_config is None:
        raise not_a_call(model)
    frame_locals = _generate_locals(model)
    streamer = frame_locals.get("streamer") if streamer is None else streamer
    models = (drafter, assistant_model, frame_locals.get("assistant_model"))
    draft, method = _drafts(model, generation_config, models, method)
    speculation = Speculation(
        drafter=draft,
        drafting=DraftingOptions(method=method, rule=rule, budget=budget, nodes=nodes),
        seed=seed,
        tokenizers=(tokenizer, assistant_tokenizer),
    )
    source = _source(model, input_ids, inputs_tensor)
    features = _features(model, source, model_kwargs.get("encoder_outputs"))
    processors, criteria = logits_processor or [], stopping_criteria or []
    caller_kwargs = frame_locals.get("kwargs", model_kwargs)
    pictures = picture_inputs(model, caller_kwargs)
    # transformers has put what its vision tower made of them in their place
    if pictures:
        model_kwargs = as_given(model_kwargs, caller_kwargs) | pictures
    job = Job(
        input_ids, source, generation_config, processors, criteria, streamer, features
    )
    with _ended(streamer):
        check_names(model, model_kwargs, inspect.signature(generate).parameters)
        job.check(model, model_kwargs | _given_states(frame_locals, caller_kwargs))
        if pictures:
            job = replace(job, images=image_rows_of(model, input_ids, pictures))
        return job.run(model, model_kwargs.get("attention_mask"), speculation)


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
    job = Job(
        input_ids,
        source,
        generation_config,
        logits_processor,
        stopping_criteria,
        streamer,
        features,
        images,
    )
    with _ended(streamer):
        return job.run(model, model_kwargs.get("attention_mask"), speculation)


def _drafts(
    model: PreTrainedModel, config: GenerationConfig, models: Sequence[Any], method: Any
) -> tuple[Any, str | None]:
    """Return what drafts in a call, the first given of `models`, and the method."""
    draft = next((one for one in models if one is not None), None)
    others = {"drafter": draft, "method": method}
    drafter = own_draft(model, vars(config).get, others)
    return (draft, method) if drafter is None else (drafter.source, drafter.method)


@contextmanager
def _ended(streamer: Any) -> Iterator[None]:
    """End the streamer when the block is left, since its reader waits for that."""
    try:
        yield
    finally:
        if streamer is not None:
            streamer.end()


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


def _given_states(
    frame_locals: dict[str, Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the inputs of a check that a callable gets otherwise, or not at all.

    transformers has run the encoder already; only states that the caller gave are
    refused.
    """
    return {
        "encoder_outputs": kwargs.get("encoder_outputs") if frame_locals else None,
        "synced_gpus": frame_locals.get("synced_gpus"),
    }


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
