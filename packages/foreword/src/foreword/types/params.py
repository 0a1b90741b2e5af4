"""Sampling parameters of a request, and the checks of their types and ranges."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any, cast

from foreword.checks import Check, flag, is_zero_dimensional, scalar, text, whole
from foreword.errors import InvalidRequest, check_unicode
from foreword.method_name import spelled
from foreword.options import NODES, DraftingOptions
from foreword.types import constraint

if TYPE_CHECKING:  # the command line checks its options before it loads torch
    from jaxtyping import Float, Int
    from torch import Tensor

    LogitsProcessor = Callable[
        [Int[Tensor, "1 length"], Float[Tensor, "1 vocab"]], Float[Tensor, "1 vocab"]
    ]
else:
    LogitsProcessor = Callable[..., Any]
"""(tokens before a position, logits) -> new logits; the protocol of transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request. Checked on construction; an out-of-range value raises
    InvalidRequest.

    A completion is a function of (target, prompt, these parameters, seed) alone.
    """

    temperature: float = 1.0
    """0 decodes greedily, as does all below 1e-6; else logits are divided by it."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens whose probability reaches this."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the likeliest."""
    typical_p: float = 1.0
    """Locally typical sampling: keep this mass of the tokens closest to the entropy
    (Meister et al. 2022).
    """
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens seen in prompt or
    output (CTRL, Keskar et al. 2019).
    """
    presence_penalty: float = 0.0
    """Subtracted once from the logits of tokens seen in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from the logits of tokens for each time they were in the output."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids, before everything else."""
    bad_words: tuple[str, ...] = ()
    """Strings whose tokens must not be produced in sequence."""
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    """Bad words as token ids, for callers without a tokenizer."""
    allowed_token_ids: tuple[int, ...] | None = None
    """The only token ids that may be produced; None allows all. Without an end-of-text
    token among them, the answer has `max_tokens` tokens.
    """
    max_tokens: int = 256
    """At most this many new tokens."""
    min_tokens: int = 0
    """End-of-text and stop token ids are forbidden before this many new tokens."""
    stop: tuple[str, ...] = ()
    """Text that ends the completion."""
    include_stop_str_in_output: bool = False
    """Whether the text returned ends with the stop string, instead of before it."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the completion, beside the model's own end-of-text."""
    ignore_eos: bool = False
    """Do not end at the model's own end-of-text token."""
    logprobs: int | None = None
    """Report the log-probability of each token and of this many likeliest tokens, under
    the raw target.
    """
    seed: int | None = None
    """Same seed, same text. None draws one and reports it."""
    n: int = 1
    """Answers to one prompt. The first has the seed, and the seeds of the others follow
    from it; all are reported.
    """
    skip_special_tokens: bool = True
    """Leave special tokens out of the text (never out of the token ids)."""
    processors: tuple[LogitsProcessor, ...] = ()
    """Called per position with the tokens before, between penalties and temperature."""
    json_schema: str | Mapping[str, Any] | None = None
    """The answer is JSON of this schema, a dict or text (docs/structured-output.md)."""
    json_object: bool = False
    """The answer is a JSON object."""
    regex: str | None = None
    """The whole answer matches this regular expression."""
    grammar: str | None = None
    """The answer follows this EBNF grammar (GBNF, as xgrammar) from its rule `root`."""
    structural_tag: str | Mapping[str, Any] | None = None
    """The answer follows this structural tag of xgrammar: free text with parts that
    have a form.
    """
    prediction: str | tuple[int, ...] = ""
    """Text or token ids that the answer may contain; never changes the answer."""
    language: str = ""
    """Language of an encoder-decoder's answer (`fra_Latn`, `fr`); empty: default."""
    tenant: str = ""
    """Owner of the request: caches are never used again for another tenant."""
    adapter: str | None = None
    """Name of the adapter to use (docs/targets/adapters.md); None: the model alone."""
    priority: int = 0
    """Smaller runs sooner, equals first come, first served. Never changes the text."""
    method: str | None = None
    """Drafting method; None: the LLM's. Never changes the text under `match`."""
    rule: str | None = None
    """Verification rule, or the guarantee to keep; None: the LLM's."""
    budget: str | None = None
    """Policy that sets the number of draft tokens; None: the LLM's."""
    nodes: int | None = None
    """Fixed number of draft tokens per round, instead of `budget`."""
    trace: bool = False
    """Describe every round in `Delta.round` and `Completion.rounds`. Costs time."""

    def __post_init__(self) -> None:
        for name, check in _CHECKS.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))
        if self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens "
                f"({self.max_tokens})"
            )
        constraint.constraint(self)

    @property
    def drafting(self) -> DraftingOptions:
        """What the request says about drafting; None is the engine's default.

        Raises UnknownMethod for a name that does not exist.
        """
        return DraftingOptions(
            method=self.method, rule=self.rule, budget=self.budget, nodes=self.nodes
        )

    @property
    def greedy(self) -> bool:
        """Whether decoding is greedy; no noise is used."""
        return self.temperature == 0

    @property
    def neutral(self) -> bool:
        """Whether logits that nothing was added to are log-weights as they are."""
        filtered = self.top_k or self.top_p < 1 or self.min_p or self.typical_p < 1
        return self.temperature == 1 and not filtered

    @property
    def plain(self) -> bool:
        """Whether the distribution is softmax(logits / temperature), unchanged."""
        filtered = self.top_k or self.top_p < 1 or self.min_p or self.typical_p < 1
        return not (
            self.reads_path
            or self.logit_bias
            or self.allowed_token_ids
            or (filtered and not self.greedy)
        )

    @property
    def structured(self) -> bool:
        """Whether the answer must follow a schema, an expression or a grammar."""
        return bool(
            self.json_schema
            or self.json_object
            or self.regex
            or self.grammar
            or self.structural_tag
        )

    @property
    def reads_path(self) -> bool:
        """Whether earlier tokens matter: penalties, bad words, processors, grammars."""
        return bool(
            self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.bad_word_ids
            or self.min_tokens
            or self.processors
            or self.structured
        )


# ---- the checks


def _number(low: float, high: float, shown: str) -> Check:
    def check(name: str, value: Any) -> float:
        number = scalar(value)
        is_real = isinstance(number, Real) and not isinstance(number, bool)
        if not (is_real and low <= cast("float", number) <= high):  # never true of NaN
            raise InvalidRequest(f"{name} must be in {shown}, got {value!r}")
        return float(number)

    return check


def _temperature(name: str, value: Any) -> float:
    number = _number(0, 100, "[0, 100]")(name, value)
    return number if number >= _COLDEST else 0.0


def _listed(name: str, value: Any, of: str) -> tuple[Any, ...]:
    """Return the items of a list as a tuple; None counts as empty."""
    if value is None:
        return ()
    if (
        isinstance(value, str | bytes | Mapping)
        or not isinstance(value, Iterable)
        or is_zero_dimensional(value)
    ):
        raise InvalidRequest(f"{name} must be a list of {of}, got {value!r}")
    return tuple(value)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = (
        (value,)
        if isinstance(value, str)
        else _listed(name, value, "non-empty strings")
    )
    if not all(isinstance(text, str) and text for text in texts):
        raise InvalidRequest(f"{name} must be non-empty strings, got {value!r}")
    return tuple(check_unicode(name, text) for text in texts)


def _name(name: str, value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and value.strip()):
        raise InvalidRequest(f"{name} must be None or a name, got {value!r}")
    return value


def _method(name: str, value: Any) -> str | None:
    return None if _name(name, value) is None else spelled(value)


def _text_or_ids(name: str, value: Any) -> str | tuple[int, ...]:
    return check_unicode(name, value) if isinstance(value, str) else _ids(name, value)


def _ids(name: str, value: Any) -> tuple[int, ...]:
    return tuple(
        _ID(f"each token id of {name}", token)
        for token in _listed(name, value, "token ids")
    )


def _some_ids(name: str, value: Any) -> tuple[int, ...] | None:
    """Return token ids, at least one; None stays None."""
    ids = None if value is None else _ids(name, value)
    if ids == ():
        raise InvalidRequest(f"{name} must hold a token id. Leave it out to allow all")
    return ids


def _words(name: str, value: Any) -> tuple[tuple[int, ...], ...]:
    words = tuple(
        _ids(name, word) for word in _listed(name, value, "lists of token ids")
    )
    if () in words:
        raise InvalidRequest(f"{name} must not hold an empty word, got {value!r}")
    return words


def _biases(name: str, value: Any) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidRequest(
            f"{name} must map token ids to numbers in [-100, 100], got {value!r}"
        )
    return {
        _ID(f"each key of {name}", token): _BIAS(f"each value of {name}", bias)
        for token, bias in value.items()
    }


def _callables(name: str, value: Any) -> tuple[LogitsProcessor, ...]:
    processors = _listed(name, value, "callables")
    if not all(callable(processor) for processor in processors):
        raise InvalidRequest(
            f"{name} must be callables that take tokens and logits, got {value!r}"
        )
    return processors


_ID = whole(0)
_BIAS = _number(-100, 100, "[-100, 100]")
_COLDEST = 1e-6
"""Lowest temperature that samples. Below it, logits lose the noise or overflow."""
_ABOVE_0 = math.nextafter(0.0, 1.0)

_CHECKS: dict[str, Check] = {
    "temperature": _temperature,
    "top_k": whole(0, 2**31, "[0, 2**31]"),
    "top_p": _number(_ABOVE_0, 1, "(0, 1] (for greedy decoding use temperature=0)"),
    "min_p": _number(0, 1, "[0, 1]"),
    "typical_p": _number(_ABOVE_0, 1, "(0, 1]"),
    "repetition_penalty": _number(_ABOVE_0, 100, "(0, 100]"),
    "presence_penalty": _number(-2, 2, "[-2, 2]"),
    "frequency_penalty": _number(-2, 2, "[-2, 2]"),
    "logit_bias": _biases,
    "bad_words": _texts,
    "bad_word_ids": _words,
    "allowed_token_ids": _some_ids,
    "max_tokens": whole(1, 2**31, "[1, 2**31]"),
    "min_tokens": whole(0, 2**31, "[0, 2**31]"),
    "stop": _texts,
    "include_stop_str_in_output": flag,
    "stop_token_ids": _ids,
    "ignore_eos": flag,
    "logprobs": whole(0, 100, optional=True),
    "seed": whole(0, 2**63 - 1, "[0, 2**63)", optional=True),
    "n": whole(1, 1024),
    "skip_special_tokens": flag,
    "processors": _callables,
    "json_schema": constraint.json_text,
    "json_object": flag,
    "regex": constraint.text,
    "grammar": constraint.text,
    "structural_tag": constraint.json_text,
    "prediction": _text_or_ids,
    "language": text,
    "tenant": text,
    "adapter": _name,
    "priority": whole(-(2**31), 2**31, "[-2**31, 2**31]"),
    "method": _method,
    "rule": _name,
    "budget": _name,
    "nodes": whole(0, NODES, optional=True),
    "trace": flag,
}
