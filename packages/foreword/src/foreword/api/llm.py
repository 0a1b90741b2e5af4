"""The text API: tokenizer and chat template around the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from foreword import bundled
from foreword.api import defaults
from foreword.api.requests import Requests
from foreword.api.session import Session
from foreword.budget import DraftBudget
from foreword.chats.prompts import (
    Prompt,
    Rendered,
    check_one_answer,
    is_several,
    listed,
    per_prompt,
)
from foreword.draft import method as find_method
from foreword.draft import method_of
from foreword.draft.ensemble.recipe import Sources
from foreword.engine import Engine
from foreword.engine.scheduler import Scheduler
from foreword.engine.speculator_cache import (
    SpeculatorCache,
    check_source,
    described,
    source_of,
)
from foreword.errors import InvalidRequest
from foreword.files import settings_path
from foreword.model import Model, Tokenizer, load_tokenizer, need_tokenizer
from foreword.model.loading.given import Given, GivenTokenizer, adapted, check_given
from foreword.options import DraftingOptions, ModelOptions, SchedulingOptions
from foreword.registry import AUTO, DEFAULT_RULE, MODEL
from foreword.types import Completion, Delta, SamplingParams, TokenLogprob
from foreword.types.speech import LONGEST

if TYPE_CHECKING:
    from foreword.chats import Message, Options, Tool
    from foreword.speech.options import Audio, Transcript


def drafted_by(
    target: object, draft: Sources, **named: Any
) -> tuple[Sources, DraftingOptions, bool]:
    """Return the draft, the options of drafting, and whether a method is named."""
    settings: dict[str, Any] = {}
    # `foreword.toml` counts where the caller names nothing
    if settings_path() and [draft, *named.values()].count(None) > len(named):
        from foreword.settings_file import settings_for

        settings = settings_for(target)
        draft = settings.pop("draft", None)
    if draft == AUTO:
        from foreword.draft.published import draft_for

        draft = draft_for(target)
    options = DraftingOptions(**named | settings)
    source = bundled.draft() if target is None and draft is None else draft
    method = method_of(options, source, target)
    full = replace(options, method=method, rule=options.rule or DEFAULT_RULE)
    return draft, full, options.method is not None


def _check_tokenizer(source: Sources, options: ModelOptions) -> None:
    """Raise ModelError where files of a draft model's tokenizer are missing."""
    if isinstance(source, str | Path):
        load_tokenizer(source, trust_remote_code=options.trust_remote_code)


def _image_reader() -> Callable[[object], Any]:
    from foreword.chats import image_reader

    return image_reader()


class LLM:
    """A target model, a drafter and the engine that runs them.

    Requests may set their own method, rule and budget (`SamplingParams`). Threads may
    share one LLM: their requests share rounds.

    Without `draft`, `method`, `rule`, `budget` and `nodes`, a `foreword.toml` of the
    working directory for this target gives them (docs/command-line.md).

    Args:
        target: Folder, hub id, GGUF file or model in memory, which stays unchanged.
            Default: the bundled target.
        tokenizer: Default: target's. False: token ids (docs/targets/image-tokens.md).
        draft: As `target`, or the folder of a head. "auto": a published one in the
            cache (docs/training/share.md). If several methods need a source, a dict by
            method; the first is the default. The bundled draft model is left out if it
            cannot be loaded (`Completion.undrafted` says why).
        method: Drafting method (`foreword methods` lists them); "none" decodes
            plainly. Default: "auto", the fastest of the draft's method and lookups, or
            with a rule, budget or `nodes` the draft's own method (choose-a-method.md).
        rule: Verification rule. "match" gives the same text as plain decoding with the
            same seed, the others the same distribution. Or a guarantee, "same-text" or
            "same-distribution": the fastest rule for it.
        budget: Policy for the number of draft tokens (docs/budgets.md).
        nodes: Fixed number of draft tokens per round, instead of a budget.
        dtype: "float32", "bfloat16", "float16" or "auto": bfloat16 where it is fast.
        device: "cpu", "cuda", "cuda:1" or "auto".
        backend: How the target runs (docs/how-it-works.md). Default: the fastest exact.
        weights: "int8" or "int4": form of linear weights (docs/targets/quantized.md).
        kv: "int8": keys and values in 8 bits.
        offload_folder: Weights beyond memory (docs/targets/larger-than-memory.md).
        portable: Same text on every processor, without instructions for bfloat16.
        draft_vocabulary: Token ids that a draft model chooses from, the first so many
            (docs/methods/lm.md). Default: 32,768 of 98,304 or more.
        tensor_parallel: Processes that share weights (docs/scaling/tensor-parallel.md).
        slots: Sequences that run at a time.
        chunk: Prompt tokens read in one round.
        read_ms: Milliseconds of a round for prompts while others write (serving.md).
        cache_tokens: Most tokens of keys and values held. Default: a quarter of the
            free memory (docs/kv-cache.md).
        trust_remote_code: Permission to run code from the model's folder.
        adapters: Folders of LoRA adapters by name (docs/targets/adapters.md).
        generation_config: Sampling of requests without `params`: "auto" is that of the
            model's owner, "none" that of SamplingParams, a dict some values of its own.

    Raises:
        ModelError: A model that is named cannot be loaded or run.
        UnknownMethod: The method, rule or budget does not exist.

    Examples:
        >>> llm = LLM()  # the bundled models
        >>> params = SamplingParams(temperature=0, max_tokens=16)
        >>> llm.generate("The capital of France is", params)[0].text
    """

    def __init__(
        self,
        target: Given | None = None,
        *,
        tokenizer: GivenTokenizer = None,
        draft: Sources = None,
        method: str | None = None,
        rule: str | None = None,
        budget: str | DraftBudget | None = None,
        nodes: int | None = None,
        dtype: str = "auto",
        device: str = "auto",
        backend: str | None = None,
        weights: str | None = None,
        kv: str | None = None,
        offload_folder: str | Path | None = None,
        portable: bool = False,
        draft_vocabulary: int | None = None,
        tensor_parallel: int = 1,
        slots: int = 8,
        chunk: int = 512,
        read_ms: int | None = None,
        cache_tokens: int | None = None,
        trust_remote_code: bool = False,
        adapters: Mapping[str, str | Path] | None = None,
        generation_config: defaults.GenerationConfig = defaults.AUTO,
    ) -> None:
        sampling = defaults.given(generation_config)
        drafts = dict(method=method, rule=rule, budget=budget, nodes=nodes)
        draft, drafting, is_named = drafted_by(target, draft, **drafts)
        scheduling = SchedulingOptions(
            slots=slots, chunk=chunk, read_ms=read_ms, cache_tokens=cache_tokens
        )
        options = ModelOptions(
            dtype=dtype,
            device=device,
            backend=backend,
            weights=weights,
            kv=kv,
            offload_folder=offload_folder,
            portable=portable,
            draft_vocabulary=draft_vocabulary,
            tensor_parallel=tensor_parallel,
            trust_remote_code=trust_remote_code,
        )
        is_bundled = target is None
        target = bundled.target() if target is None else target
        check_given(target, draft, tokenizer, options)
        self.method = str(drafting.method)
        drafter = find_method(self.method)
        source = source_of(draft, self.method, drafter)
        if not is_bundled:
            check_source(source, self.method, drafter)
        if drafter.about.takes == MODEL and tokenizer is not False:
            _check_tokenizer(source, options)
        model, self._tokenizer = adapted(target, tokenizer, options, adapters)
        model.cache_tokens = scheduling.cache_tokens
        speculators = SpeculatorCache(
            model, self._tokenizer, draft, drafting, bundled=is_bundled
        )
        engine = Engine(
            model,
            *speculators.default(fallback=not is_named),
            Scheduler(slots=slots, chunk=chunk, read_ms=read_ms),
        )
        self.advised = defaults.advised(model.hf, model.name, generation_config)
        self.sampling = {**self.advised, **sampling}
        """SamplingParams of requests without `params`; `advised`: the owner's."""
        default = SamplingParams(**self.sampling)
        requests = Requests(model, self._tokenizer, _image_reader, default=default)
        self.session = Session(
            engine, speculators, requests, self._tokenizer, self.method
        )
        """Runs the requests; for code that runs rounds itself."""

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Complete all prompts together and return the completions in the order of the
        prompts.

        `params` are for all prompts, or a list with one for each. If `params.n` > 1,
        the answers to one prompt are adjacent, each with a reported seed. Raises
        InvalidRequest before any work starts if a prompt or a parameter cannot be
        served.
        """
        session = self.session
        requests = [
            request
            for prompt, prompt_params in per_prompt(listed(prompts), params)
            for request in session.prepare(prompt, prompt_params)
        ]
        return list(session.completions(requests))

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Iterator[Delta]:
        """Complete one prompt and yield a delta per round.

        Closing the iterator aborts the request.
        """
        request, *more = self.session.prepare(prompt, params)
        if more:
            raise InvalidRequest(
                f"cannot stream n={1 + len(more)} answers at once: a stream is one "
                "text. Use n=1"
            )
        return self.session.stream(request)

    @overload
    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        tools: Sequence[Tool] | None = None,
    ) -> Completion: ...

    @overload
    def chat(
        self,
        messages: Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        tools: Sequence[Tool] | None = None,
    ) -> list[Completion]: ...

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        tools: Sequence[Tool] | None = None,
    ) -> Completion | list[Completion]:
        """Answer a conversation, formatted with the model's chat template; or several
        together, in a list, as `generate` does.

        `tools` are the functions that the model may call, as in OpenAI's API; a call is
        part of the text. Raises InvalidRequest for a chat that cannot be rendered.
        """
        if is_several(messages):
            prompts = [self.render(one, tools) for one in messages]
            return self.generate(prompts, params)
        check_one_answer(params)
        prompt = self.render(cast("Sequence[Message]", messages), tools)
        return self.generate([prompt], params)[0]

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        tools: Sequence[Tool] | None = None,
    ) -> Iterator[Delta]:
        """Answer a conversation and yield a delta per round, as `stream` does."""
        return self.stream(self.render(messages, tools), params)

    def transcribe(
        self,
        audio: Audio | Sequence[Audio],
        params: SamplingParams | None = None,
        *,
        language: str | None = None,
        task: str | None = None,
        timestamps: bool = False,
        prompt: str = "",
        condition_on_prev_tokens: bool = False,
        fallback: Sequence[float] = (),
        compression_ratio_threshold: float | None = None,
        logprob_threshold: float | None = None,
        no_speech_threshold: float | None = None,
        max_seconds: float = LONGEST,
    ) -> list[Transcript]:
        """Transcribe sounds together and return the transcripts in their order.

        A sound is a file, or (samples, rate in Hz). `params` default to greedy
        decoding; `max_tokens` counts for each window of 30 seconds. SpeechOptions
        describes the other options (docs/targets/speech.md). With `params.n` > 1, the
        transcripts of one sound are adjacent. Raises InvalidRequest where a sound or an
        option cannot be served.
        """
        # the models of speech are a part of their own, which text does not need
        from foreword.speech.options import SpeechOptions
        from foreword.speech.transcribe import transcriptions

        options = SpeechOptions(
            language=language,
            task=task,
            timestamps=timestamps,
            prompt=prompt,
            condition_on_prev_tokens=condition_on_prev_tokens,
            fallback=tuple(fallback),
            compression_ratio_threshold=compression_ratio_threshold,
            logprob_threshold=logprob_threshold,
            no_speech_threshold=no_speech_threshold,
            max_seconds=max_seconds,
        )
        session = self.session
        runs = transcriptions(
            session.target, session.tokenizer, session.locked, audio, params, options
        )
        return session.run(runs)

    def close(self) -> None:
        """Abort all requests and free the models; readers get an error.

        May be called twice.
        """
        self.session.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.session.closed:
            return "<LLM, closed>"
        return described(self.engine, self.method)

    @property
    def target(self) -> Model:
        """The target, until the LLM is closed."""
        return self.session.target

    @property
    def engine(self) -> Engine:
        """What runs the rounds, until the LLM is closed."""
        return self.session.engine

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's tokenizer. Raises InvalidRequest where there is none."""
        return need_tokenizer(self._tokenizer)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] | None = None,
        template_options: Options | None = None,
    ) -> Rendered:
        """Return the prompt of a chat, tools included: its token ids; with images, an
        ImagePrompt, which `generate` takes too.

        Raises InvalidRequest if it cannot be rendered.
        """
        with self.session.reading() as requests:
            return requests.render(messages, tools, template_options)

    def score(
        self, prompt: Prompt, top: int = 0, adapter: str | None = None
    ) -> list[TokenLogprob | None]:
        """Return the log-probability (nats) of each prompt token under the raw target;
        None for the first.

        `top`: likeliest tokens listed with each. `adapter`: as of a request. Raises
        InvalidRequest for a prompt that cannot be served.
        """
        from foreword.model.scoring import score

        params = SamplingParams(max_tokens=1, logprobs=top, adapter=adapter)
        prompt_and_params = self.session.read(prompt, params)
        with self.session.locked():
            (request,) = self.session.build(prompt_and_params)
            return score(self.target, request)
