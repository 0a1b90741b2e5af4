"""Dataclasses of related options, checked on construction, before torch is imported."""

import sys
from collections.abc import Callable
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from foreword.cli.common import early, options, render
from foreword.errors import InvalidRequest
from foreword.options import DraftingOptions, ModelOptions, keywords
from foreword.registry import AUTO

if TYPE_CHECKING:
    from foreword.api.defaults import GenerationConfig
    from foreword.api.llm import LLM
    from foreword.chats.prompts import Rendered
    from foreword.types.params import SamplingParams


def bundled(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take dataclasses of options: fields become its options."""
    hints = get_type_hints(command, include_extras=True)
    bundles = {
        name: kind
        for name, kind in hints.items()
        if is_dataclass(kind) and isinstance(kind, type)
    }

    @wraps(command)
    def flat(**values: Any) -> None:
        built = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            for name, kind in bundles.items()
        }
        command(**values, **built)

    parameters = [
        part
        for name, own in signature(command).parameters.items()
        for part in (
            _options(bundles[name])
            if name in bundles
            else [own.replace(annotation=hints[name])]
        )
    ]
    vars(flat)["__signature__"] = Signature(parameters)
    flat.__annotations__ = {part.name: part.annotation for part in parameters}
    return flat


def _options(kind: type[Any]) -> list[Parameter]:
    """Return the parameters of a bundle: settings that foreword.options declares, or
    options of its own.
    """
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=_annotation(kind, field),
        )
        for field in fields(kind)
    ]


def _annotation(kind: type[Any], field: Field[Any]) -> Any:
    if "described" in field.metadata:
        return options.declared(kind, field.name)
    return get_type_hints(kind, include_extras=True)[field.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingValues:
    """Options for the sampling parameters that a model may have defaults for."""

    temperature: options.OptionalTemperature = None
    top_p: options.TopP = None
    top_k: options.TopK = None
    min_p: options.MinP = None
    typical_p: options.TypicalP = None
    repetition_penalty: options.RepetitionPenalty = None
    presence_penalty: options.PresencePenalty = None
    frequency_penalty: options.FrequencyPenalty = None
    generation_config: options.GenerationConfig = "auto"

    def __post_init__(self) -> None:
        self.defaults()

    def defaults(self) -> "GenerationConfig":
        """Return the `generation_config` of an LLM whose requests have these values.

        Raises InvalidRequest for a value out of range.
        """
        from foreword.types.params import SamplingParams

        names = [field.name for field in fields(SamplingValues)][:-1]
        values = {
            name: value for name in names if (value := getattr(self, name)) is not None
        }
        checked = SamplingParams(**values)
        if not values or self.generation_config == "auto":
            return values or self.generation_config
        return {name: getattr(checked, name) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling(SamplingValues):
    """Options for sampling and for where the text ends."""

    logit_bias: options.LogitBias = None
    bad_word: options.BadWord = None
    max_tokens: options.MaxTokens = None
    min_tokens: options.MinTokens = 0
    stop: options.Stop = None
    ignore_eos: options.IgnoreEos = False
    seed: options.Seed = None
    language: options.Language = ""
    tenant: options.Tenant = ""
    json_schema: options.JsonSchema = None
    json_object: options.JsonObject = False
    regex: options.Regex = None
    grammar: options.Grammar = None

    def __post_init__(self) -> None:
        SamplingValues.__post_init__(self)
        self.params()

    def params(self) -> "SamplingParams":
        """Return the parameters without SamplingValues, or raise InvalidRequest."""
        from foreword.types.params import SamplingParams

        names = [field.name for field in fields(self)][len(fields(SamplingValues)) :]
        values = {name: getattr(self, name) for name in names}
        del values["bad_word"]
        values |= {
            "logit_bias": _biases(self.logit_bias or ()),
            "bad_words": self.bad_word,
            "stop": self.stop,
        }
        values |= {
            "json_schema": early.json_text(self.json_schema),
            "grammar": early.text(self.grammar),
        }
        if self.max_tokens is None:
            values["max_tokens"] = max(options.MAX_TOKENS, self.min_tokens)
        return SamplingParams(**values)

    def fitting(
        self, llm: "LLM", params: "SamplingParams", prompt: "Rendered"
    ) -> "SamplingParams":
        """Return the parameters with the sampling of an LLM, whose defaults hold these
        options, and the default length limited to the context left after a prompt.
        """
        from foreword.api.limits import RequestLimits

        params = replace(params, **llm.sampling)
        if self.max_tokens is not None:
            return params
        room = max(1, RequestLimits(llm.target).room(len(prompt)))
        return replace(
            params, max_tokens=min(params.max_tokens, max(room, params.min_tokens))
        )


def _biases(texts: list[str] | tuple[str, ...]) -> dict[int, float]:
    biases: dict[int, float] = {}
    for bias in texts:
        name, _, value = bias.partition("=")
        try:
            biases[int(name)] = float(value)
        except ValueError:
            raise InvalidRequest(
                f"cannot read '--logit-bias' {bias!r}: it is not a token id and number."
                " Give ID=VALUE"
            ) from None
    return biases


def permitted(model: str | None, draft: str | None) -> str | None:
    """Return the draft; for "auto" on a terminal, the drafter of the hub whose download
    is confirmed, or None.
    """
    if draft != AUTO or model is None or Path(AUTO).exists():
        return draft
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return draft
    from foreword.draft.published import find

    folder, name, about = find(model)
    if folder is not None or not name:
        return draft
    return name if typer.confirm(f"download {about}?", err=True) else None


def open_llm(
    model: str | None,
    draft: str | None,
    loading: ModelOptions,
    drafting: DraftingOptions,
    **more: Any,
) -> "LLM":
    """Load a target and its drafter, with a note on stderr meanwhile."""
    draft = permitted(model, draft)
    with render.loading():
        from foreword import LLM

        settings = keywords(loading) | keywords(drafting) | more
        return LLM(model, draft=draft, **settings)
