"""Options that go together, and what a command makes of them. Checked on construction, before torch is imported.

Knows options and their checks; knows nothing about what the commands do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Any, get_type_hints

from foreword.cli import options
from foreword.errors import InvalidRequest

if TYPE_CHECKING:
    from foreword.llm import LLM
    from foreword.params import SamplingParams


def bundled(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take dataclasses of options: their fields become options of the command."""
    hints = get_type_hints(command, include_extras=True)
    bundles = {name: kind for name, kind in hints.items() if is_dataclass(kind) and isinstance(kind, type)}

    @wraps(command)
    def flat(**given: Any) -> None:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in fields(kind)})
            for name, kind in bundles.items()
        }
        command(**given, **made)

    parameters = [
        part
        for name, own in signature(command).parameters.items()
        for part in (_options(bundles[name]) if name in bundles else [own.replace(annotation=hints[name])])
    ]
    vars(flat)["__signature__"] = Signature(parameters)
    flat.__annotations__ = {part.name: part.annotation for part in parameters}
    return flat


def _options(kind: type[Any]) -> list[Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in fields(kind)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How a model is loaded."""

    dtype: options.DtypeName = "auto"
    device: options.Device = "auto"

    @property
    def how(self) -> dict[str, Any]:
        """Keywords for LLM."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusting(Loading):
    """The same, and whether code of the model's folder may run."""

    trust_remote_code: options.Trust = False

    @property
    def how(self) -> dict[str, Any]:
        """Keywords for LLM, those alone that were given."""
        return {field.name: getattr(self, field.name) for field in fields(self) if getattr(self, field.name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Driving(Trusting):
    """The same, and how it is driven."""

    way: options.Way = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Guessing:
    """Who guesses, how much, and how the guesses are judged."""

    draft: options.DraftName = None
    method: options.MethodName = None
    rule: options.RuleName = "match"
    width: options.WidthName = None
    nodes: options.Nodes = None

    def __post_init__(self) -> None:
        if self.nodes is not None and self.width is not None:
            raise InvalidRequest(
                f"nodes={self.nodes} is how much is guessed, and width={self.width!r} decides it; give one"
            )

    @property
    def how(self) -> dict[str, Any]:
        """Keywords for LLM."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is drawn, and when the text ends."""

    temperature: options.Temperature = 1.0
    top_p: options.TopP = 1.0
    top_k: options.TopK = 0
    min_p: options.MinP = 0.0
    typical_p: options.TypicalP = 1.0
    repetition_penalty: options.RepetitionPenalty = 1.0
    presence_penalty: options.PresencePenalty = 0.0
    frequency_penalty: options.FrequencyPenalty = 0.0
    logit_bias: options.LogitBias = None
    bad_word: options.BadWord = None
    max_tokens: options.MaxTokens = None
    min_tokens: options.MinTokens = 0
    stop: options.Stop = None
    ignore_eos: options.IgnoreEos = False
    seed: options.Seed = None
    tenant: options.Tenant = ""

    def __post_init__(self) -> None:
        self.params()

    def params(self) -> SamplingParams:
        """What a request asks for. Raises InvalidRequest for a value out of range."""
        from foreword.params import SamplingParams

        same = {field.name: getattr(self, field.name) for field in fields(self)}
        del same["bad_word"]
        same |= {"logit_bias": _biases(self.logit_bias or ()), "bad_words": self.bad_word, "stop": self.stop}
        if self.max_tokens is None:
            same["max_tokens"] = max(options.MAX_TOKENS, self.min_tokens)
        return SamplingParams(**same)

    def fitting(self, llm: LLM, params: SamplingParams, prompt: list[int]) -> SamplingParams:
        """The same with a default length that the context still holds after a prompt."""
        if self.max_tokens is not None:
            return params
        room = max(1, llm.target.context - len(prompt))
        return replace(params, max_tokens=min(params.max_tokens, max(room, params.min_tokens)))


def _biases(given: list[str] | tuple[str, ...]) -> dict[int, float]:
    found: dict[int, float] = {}
    for one in given:
        name, _, value = one.partition("=")
        try:
            found[int(name)] = float(value)
        except ValueError:
            raise InvalidRequest(f"a logit bias is ID=VALUE, a token id and a number, got {one!r}") from None
    return found
