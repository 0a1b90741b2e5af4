"""What a request asks for: how the next token is drawn, and when the text ends. Checked when it is made.

Knows ranges; knows nothing about models or tokenizers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from jaxtyping import Float, Int
from torch import Tensor

from foreword.errors import InvalidRequest

LogitsProcessor = Callable[[Int[Tensor, "1 length"], Float[Tensor, "1 vocab"]], Float[Tensor, "1 vocab"]]
"""Takes the tokens before a position and its logits, returns new logits; the protocol of transformers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """What a request asks for. Checked on construction; an out-of-range value raises InvalidRequest.

    A completion is a function of (target, prompt, these parameters, seed) alone.
    """

    temperature: float = 1.0
    """0 chooses the likeliest token; otherwise logits are divided by it."""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens whose probability reaches this."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the likeliest."""
    typical_p: float = 1.0
    """Locally typical sampling (Meister et al. 2022): keep this mass of the tokens closest to the entropy."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens seen in prompt or output (CTRL, Keskar et al. 2019)."""
    presence_penalty: float = 0.0
    """Subtracted once from the logits of tokens seen in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from the logits of tokens once for each time they were seen in the output."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids, before everything else."""
    bad_words: tuple[str, ...] = ()
    """Strings whose tokens must not be produced in sequence."""
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    """The same as token ids; what a caller without a tokenizer uses."""
    max_tokens: int = 256
    """At most this many new tokens."""
    min_tokens: int = 0
    """End-of-text and stop token ids are forbidden before this many new tokens."""
    stop: tuple[str, ...] = ()
    """Text that ends the completion; it is not part of the text returned."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the completion, beside the model's own end-of-text."""
    ignore_eos: bool = False
    """Do not end at the model's own end-of-text token."""
    logprobs: int | None = None
    """Report the log-probability of each token, and of this many likeliest tokens, under the raw target."""
    seed: int | None = None
    """Same seed, same text. None draws one and reports it."""
    skip_special_tokens: bool = True
    """Leave special tokens out of the text (never out of the token ids)."""
    processors: tuple[LogitsProcessor, ...] = ()
    """Called per position with the tokens before it, after penalties and before temperature."""

    def __post_init__(self) -> None:
        for name, low, high, shown in _RANGES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
                raise InvalidRequest(f"{name} must be a number in {shown}, got {value!r}")
            if not low <= value <= high:
                raise InvalidRequest(f"{name} must be in {shown}, got {value!r}")
        for name in ("top_k", "max_tokens", "min_tokens"):
            if not isinstance(getattr(self, name), int):
                raise InvalidRequest(f"{name} must be a whole number, got {getattr(self, name)!r}")
        if self.top_p <= 0:
            raise InvalidRequest("top_p must be in (0, 1], got 0; for the likeliest token use temperature=0")
        if self.typical_p <= 0:
            raise InvalidRequest("typical_p must be in (0, 1], got 0")
        if self.repetition_penalty <= 0:
            raise InvalidRequest("repetition_penalty must be greater than 0, got 0")
        if self.min_tokens > self.max_tokens:
            raise InvalidRequest(f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})")
        if self.logprobs is not None and not (isinstance(self.logprobs, int) and 0 <= self.logprobs <= 100):
            raise InvalidRequest(f"logprobs must be None or a whole number in [0, 100], got {self.logprobs!r}")
        if self.seed is not None and not (isinstance(self.seed, int) and 0 <= self.seed < 2**63):
            raise InvalidRequest(f"seed must be None or a whole number in [0, 2**63), got {self.seed!r}")
        for name in ("stop", "bad_words"):
            value = getattr(self, name)
            value = (value,) if isinstance(value, str) else tuple(value)
            if not all(isinstance(text, str) and text for text in value):
                raise InvalidRequest(f"{name} must be non-empty strings, got {value!r}")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        object.__setattr__(self, "bad_word_ids", tuple(tuple(word) for word in self.bad_word_ids))
        object.__setattr__(self, "processors", tuple(self.processors))
        if any(len(word) == 0 for word in self.bad_word_ids):
            raise InvalidRequest("bad_word_ids must not hold an empty word")
        if any(not isinstance(token, int) or token < 0 for token in (*self.stop_token_ids, *self.logit_bias)):
            raise InvalidRequest("stop_token_ids and the keys of logit_bias must be token ids (whole numbers >= 0)")
        if any(not -100 <= bias <= 100 for bias in self.logit_bias.values()):
            raise InvalidRequest("logit_bias values must be in [-100, 100]")

    @property
    def greedy(self) -> bool:
        """The likeliest token is chosen; no noise is used."""
        return self.temperature == 0

    @property
    def plain(self) -> bool:
        """The law is softmax(logits / temperature), with nothing added, filtered or forbidden."""
        filtered = self.top_k or self.top_p < 1 or self.min_p or self.typical_p < 1
        return not (self.reads_path or self.logit_bias or (filtered and not self.greedy))

    @property
    def reads_path(self) -> bool:
        """The law at a position depends on which tokens came before it, beyond what the model itself reads."""
        return bool(
            self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.bad_word_ids
            or self.min_tokens
            or self.processors
        )


_RANGES = (
    ("temperature", 0.0, 100.0, "[0, 100]"),
    ("top_k", 0, 2**31, "[0, 2**31]"),
    ("top_p", 0.0, 1.0, "(0, 1]"),
    ("min_p", 0.0, 1.0, "[0, 1]"),
    ("typical_p", 0.0, 1.0, "(0, 1]"),
    ("repetition_penalty", 0.0, 100.0, "(0, 100]"),
    ("presence_penalty", -2.0, 2.0, "[-2, 2]"),
    ("frequency_penalty", -2.0, 2.0, "[-2, 2]"),
    ("max_tokens", 1, 2**31, "[1, 2**31]"),
    ("min_tokens", 0, 2**31, "[0, 2**31]"),
)

PARAMETER_NAMES = tuple(f.name for f in fields(SamplingParams))
