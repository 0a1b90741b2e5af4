"""Request fields that several APIs share, and their form as sampling parameters."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    model_validator,
)

from foreword.errors import InvalidRequest
from foreword.registry import BUDGETS
from foreword.types import SamplingParams
from foreword_server.body import few
from foreword_server.errors import ApiError

Logprobs = Annotated[int, Field(ge=0, le=100)]
MOST_MESSAGES = 16_384
"""Messages of a conversation, or parts of one: an agent's day."""
MOST_TOOLS = 1024
"""Tools of a request: eight times OpenAI's limit."""
MOST_STOPS = 256
"""Stop strings. Each is looked for in every piece of text."""
MOST_IDS = 4096
"""Token ids to stop at, or to bias."""
MOST_WORDS = 1024
"""Bad words, each tokenized twice and compared with the text at every token."""
# pydantic makes an error for each wrong item, a gigabyte for two megabytes of zeros:
# lists end at the first fault
Messages = Annotated[
    list[dict[str, Any]], Field(fail_fast=True, max_length=MOST_MESSAGES)
]
Tools = Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=MOST_TOOLS)]
Stops = Annotated[list[str], Field(fail_fast=True, max_length=MOST_STOPS)]
Ids = Annotated[list[int], Field(fail_fast=True, max_length=MOST_IDS)]
Word = Annotated[str, Field(max_length=256)]
Words = Annotated[list[Word], Field(fail_fast=True, max_length=MOST_WORDS)]
Biases = Annotated[dict[str, float], few(MOST_IDS)]
GENERATION = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "length_penalty",
    "num_beams",
)
"""Settings that transformers and a body name alike; unsupported ones are refused."""


class Body(BaseModel):
    """A request body; unknown fields are ignored, REFUSED ones change the text."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    REFUSED: ClassVar[Mapping[str, str]] = {
        "best_of": "n",
        "use_beam_search": "temperature 0",
        "num_beams": "temperature 0",
        "length_penalty": "temperature 0",
        "no_repeat_ngram_size": "frequency_penalty",
        "logits_processors": "logit_bias",
        "truncate_prompt_tokens": "a shorter prompt",
        "mirostat": "top_p",
        "dry_multiplier": "frequency_penalty",
        "xtc_probability": "min_p",
        "options": "the same settings as fields of the request",
        "chat_template": "chat_template_kwargs",
        "conversation": "the whole input",
        "top_logprobs": "chat completions",
        "add_special_tokens": "a prompt of token ids",
        "documents": "messages",
        "dynatemp_range": "temperature",
        "image": "an image in a message",
        "lora": "a server for that model",
        "lora_path": "a server for that model",
        "mcp_servers": "tools that the client runs",
        "min_keep": "top_k",
        "mm_processor_kwargs": "an image of the right size",
        "no_stop_trim": "include_stop_str_in_output",
        "repeat_last_n": "repetition_penalty over the whole text",
        "samplers": "the parameters of each filter",
        "thread": "the whole history",
        "top_n_sigma": "min_p",
        "web_search_options": "a tool that the client runs",
    }
    """Fields that change the text and are not supported -> what to use instead."""
    DEFAULTS: ClassVar[Mapping[str, Any]] = {
        "best_of": 1,
        "length_penalty": 1.0,
        "num_beams": 1,
        "repeat_last_n": -1,
    }

    LARGE: ClassVar[tuple[str, ...]] = ()
    """Fields that hold prompts."""

    def forget(self) -> None:
        """Drop the prompts, which only the translation of an answer reads."""
        for name in self.LARGE:
            setattr(self, name, "")
        (self.model_extra or {}).clear()

    def check_extra(self) -> None:
        """Raise ApiError 400 for an unsupported field that would change the text."""
        for name, value in (self.model_extra or {}).items():
            if name in self.REFUSED and value not in (
                None,
                False,
                0,
                [],
                {},
                self.DEFAULTS.get(name),
            ):
                raise ApiError(
                    400,
                    f"cannot honour {name!r}: it would change the text and is not "
                    f"supported. Use {self.REFUSED[name]}",
                    param=name,
                )


class Speculative(BaseModel):
    """How this request drafts; with the rule `match`, the text is the same."""

    model_config = ConfigDict(extra="forbid")

    method: str | None = Field(None, description="Drafting method, or 'none'.")
    nodes: int | Literal["auto"] | None = Field(
        None, description="Draft tokens per round; 'auto' measures what pays."
    )
    budget: str | None = Field(
        None, description="Policy that sets the number of draft tokens."
    )
    rule: str | None = Field(None, description="Verification rule.")
    guarantee: Literal["same-text", "same-distribution"] | None = Field(
        None, description="Instead of a rule."
    )
    trace: bool = Field(False, description="Whether the answer includes its rounds.")


class Prediction(BaseModel):
    """Text that the answer will probably contain (OpenAI's Predicted Outputs)."""

    type: Literal["content"] = "content"
    content: str | Messages

    @property
    def text(self) -> str:
        """Return the text of all parts."""
        if isinstance(self.content, str):
            return self.content
        return "".join(str(part.get("text", "")) for part in self.content)


class Sampled(Body):
    """Fields of sampling, in the names of OpenAI and vLLM."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = Field(
        None,
        validation_alias=AliasChoices("repetition_penalty", "repeat_penalty"),
        description="Or repeat_penalty.",
    )
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Biases | None = None
    seed: int | None = None
    stop: str | Stops | None = None
    stop_token_ids: Ids | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    bad_words: Words | None = None
    allowed_token_ids: Ids | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    language: str | None = None
    priority: int | None = None
    prediction: Prediction | None = None
    speculative: Speculative | None = None

    PLAIN: ClassVar[tuple[str, ...]] = (
        "temperature",
        "top_p",
        "min_p",
        "typical_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "stop_token_ids",
        "ignore_eos",
        "min_tokens",
        "bad_words",
        "allowed_token_ids",
        "include_stop_str_in_output",
        "skip_special_tokens",
        "seed",
        "language",
        "priority",
    )
    """Fields that are sampling parameters of the same name."""
    N_MAX: ClassVar[str] = "speculative.n_max"
    """llama.cpp's number of draft tokens; its n_min and p_min are ignored."""

    @model_validator(mode="before")
    @classmethod
    def _llama_cpp(cls, body: Any) -> Any:
        """Read llama.cpp's number of draft tokens, where 0 drafts nothing."""
        if not isinstance(body, dict) or cls.N_MAX not in body:
            return body
        chosen = body.get("speculative") or {}
        if not isinstance(chosen, dict):
            return body
        most = body[cls.N_MAX]
        named = {"nodes": most} if most else {"method": "none"}
        return {**body, "speculative": {**named, **chosen}}

    def sampling(self, **rest: Any) -> dict[str, Any]:
        """Return the keyword arguments of SamplingParams; `rest` are the arguments that
        the API names otherwise.
        """
        args: dict[str, Any] = {
            name: getattr(self, name)
            for name in self.PLAIN
            if getattr(self, name) is not None
        }
        args |= {
            name: tuple(value)
            for name, value in args.items()
            if isinstance(value, list)
        }
        if self.stop is not None:
            args["stop"] = texts(self.stop)
        if self.top_k is not None:
            args["top_k"] = max(0, self.top_k)  # vLLM's -1 keeps all
        if self.logit_bias:
            args["logit_bias"] = {
                _token(key): bias for key, bias in self.logit_bias.items()
            }
        if self.prediction is not None:
            args["prediction"] = self.prediction.text
        return args | {name: value for name, value in rest.items() if value is not None}


def with_generation_config(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with the settings of its `generation_config` (transformers' JSON)
    in the names of fields.

    Fields of the body itself come first. Raises ValueError for one that is not the JSON
    of an object.
    """
    config = body.get("generation_config")
    if config is None:
        return dict(body)
    try:
        config = json.loads(config) if isinstance(config, str) else config
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise ValueError("generation_config must be the JSON of an object")
    settings = {name: value for name, value in config.items() if name in GENERATION}
    settings |= {
        "max_tokens": config.get("max_new_tokens"),
        "stop_token_ids": config.get("eos_token_id"),
    }
    if isinstance(settings["stop_token_ids"], int):
        settings["stop_token_ids"] = [settings["stop_token_ids"]]
    if config.get("do_sample") is False:
        settings["temperature"] = 0.0
    return {**settings, **body}


def speculation(
    chosen: Speculative | None, suffix: str | None, has_prediction: bool
) -> dict[str, Any]:
    """Return SamplingParams' keywords of drafting; `suffix`: the model's method."""
    values: dict[str, Any] = {}
    if chosen is not None:
        nodes = None if chosen.nodes == "auto" else chosen.nodes
        if chosen.rule and chosen.guarantee:
            raise InvalidRequest(
                "cannot use 'rule' with 'guarantee': both choose the rule. Give one"
            )
        if ":" in (chosen.budget or ""):
            raise InvalidRequest(
                f"cannot use budget {chosen.budget!r} in a request: it names a file of "
                "the server. "
                f"Use one of {', '.join(BUDGETS)}"
            )
        values = {
            "nodes": nodes,
            "budget": chosen.budget,
            "rule": chosen.rule or chosen.guarantee,
        }
        if chosen.method and suffix and chosen.method != suffix:
            raise InvalidRequest(
                f"cannot use method {chosen.method!r} with the model suffix "
                f"{suffix!r}: they differ. Give one"
            )
    method = (chosen.method if chosen else None) or suffix
    if method is None and has_prediction:
        method = "predicted"
    values |= {
        "method": method,
        "trace": True if chosen is not None and chosen.trace else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def texts(stop: str | list[str]) -> tuple[str, ...]:
    """Return stop strings as a tuple; clients send empty ones, which stop nothing."""
    return tuple(text for text in ([stop] if isinstance(stop, str) else stop) if text)


def build(values: dict[str, Any]) -> SamplingParams:
    """Return the parameters. ApiError 400 names a field out of range."""
    try:
        return SamplingParams(**values)
    except InvalidRequest as error:
        name = re.match(r"\w+", str(error))
        raise ApiError(
            400, str(error), param=name[0] if name and name[0] in values else None
        ) from None


def _token(key: str) -> int:
    try:
        return int(key)
    except ValueError:
        raise InvalidRequest(
            f"logit_bias must map token ids to numbers, got the key {key!r}"
        ) from None
