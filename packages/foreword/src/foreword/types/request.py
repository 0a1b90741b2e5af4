"""Types of the engine loop: requests, batches, scores, deltas and completions."""

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor

from foreword.types.draft import DraftTree
from foreword.types.markup import answer_html
from foreword.types.params import SamplingParams
from foreword.types.round import Round
from foreword.types.source import Source
from foreword.types.speech import Features
from foreword.types.stats import Moments, Stats

FinishReason = Literal["stop", "length", "abort"]
StopReason = str | int | None
"""The stop string, or the id of the stop token, that ended an answer, or None."""
Lists = Literal["one", "distinct"]
"""How a rule's drafts sample siblings: one, or several without replacement."""
Origin = Literal["accepted", "bonus"]
"""Where a token came from: an *accepted* draft token, or the target's *bonus*."""


@runtime_checkable
class TextDecoder(Protocol):
    """Incremental detokenizer; api/detokenizer.py implements it."""

    stop: str | None
    """The stop string that ended the text."""

    def push(self, token: int) -> tuple[str, bool]:
        """Read one token; return the text now final, and whether a stop completed."""
        ...

    def finish(self) -> str:
        """Return the text held back: a part of a character or of a stop string."""
        ...


@runtime_checkable
class TokenGrammar(Protocol):
    """Grammar of one answer (structured/matcher.py). `tokens`: prompt and answer."""

    def allowed(
        self, tokens: list[int], paths: list[list[int]]
    ) -> Bool[Tensor, "rows vocab"]:
        """Return the tokens that may follow each path; none after a refused one."""
        ...

    def accepted(self, tokens: list[int], tree: DraftTree) -> list[int]:
        """Return a draft tree's nodes whose path the grammar accepts, parents first."""
        ...

    def forced(self, tokens: list[int], path: list[int], most: int) -> list[int]:
        """Return at most `most` tokens of the only possible text; empty if free."""
        ...

    def finished(self, tokens: list[int]) -> bool:
        """Return whether the answer is complete and no text may follow."""
        ...


@runtime_checkable
class PromptImages(Protocol):
    """The images of a prompt, as a model takes them (model/vision/rows.py)."""

    @property
    def keys(self) -> list[int]:
        """Tokens of the prompt to compare; a placeholder names its images."""
        ...

    @property
    def whole(self) -> tuple[tuple[int, int], ...]:
        """Parts to be read in one forward: (first token, token after the last)."""
        ...


class Adapter:
    """An adapter of a target; its backend's own class says how it is added."""

    def __init__(self, key: str) -> None:
        """`key`: names what it computes, and so the keys and values of texts."""
        self.key = key


@dataclass(slots=True, eq=False)
class Request:
    """A running request, the only mutable type; the engine and commit.py write it."""

    id: int
    tokens: list[int]
    """Token ids of the prompt and everything committed."""
    prompt: int
    """Tokens. Length of the prompt."""
    params: SamplingParams
    seed: int
    """With the text, the key of all noise; params.seed, or a random one."""
    eos: frozenset[int] = frozenset()
    """Token ids that end this request."""
    reader: TextDecoder | None = None
    """Set if the request needs text or has stop strings."""
    prediction: tuple[int, ...] = ()
    """params.prediction as token ids."""
    grammar: TokenGrammar | None = None
    """Set if `params.structured`."""
    source: Source = field(default_factory=Source)
    """Token ids that an encoder reads, the prompt; `tokens` are the decoder's."""
    images: PromptImages | None = None
    """Set if there are images in the prompt."""
    features: Features | None = None
    """Audio features, for an encoder that reads audio."""
    forced_end: int | None = None
    """The token that takes the last place of an answer of max_tokens."""
    material: tuple[int, ...] = ()
    """Numbers that the model reads besides tokens, to key the noise: digests."""
    adapter: Adapter | None = None
    """Adapter that `params` names, kept in memory as long."""
    cached: int = 0
    """Tokens in the target's KV cache, below len(tokens). The others are *pending*."""
    rounds: int = 0
    """Rounds that emitted tokens; keys the noise of rules that must not reuse it."""
    finish_reason: FinishReason | None = None
    stop_reason: StopReason = None
    error: Exception | None = None
    """The error that ended this request, e.g. of its own logits processor."""
    undrafted: str | None = None
    """Why drafting was turned off for this request; None while it is on."""
    noise_keys: "array[int]" = field(default_factory=lambda: array("Q"), init=False)
    """Keys of the noise of the answer's tokens (sampling/streams.py)."""
    speculator: object = None
    """Speculator of the request, kept in memory as long."""
    unread: "deque[Delta]" = field(default_factory=deque)
    """Committed deltas that the caller has not read yet."""
    stats: Stats = field(default_factory=Stats)
    moments: Moments = field(default_factory=Moments)

    @property
    def owner(self) -> str:
        """Tenant and adapter: keys and values of one are never used for another.

        A tenant may be any text; the key of an adapter holds no NUL.
        """
        key = "" if self.adapter is None else self.adapter.key
        return f"{key}\0{self.params.tenant}"

    @property
    def pending(self) -> list[int]:
        """Committed tokens that the next forwards must read."""
        return self.tokens[self.cached :]

    @property
    def produced(self) -> int:
        """Tokens emitted so far, without the prompt."""
        return len(self.tokens) - self.prompt

    @property
    def room(self) -> int:
        """Tokens that may still be emitted."""
        return self.params.max_tokens - self.produced

    @property
    def encoder_input(self) -> Source | Features:
        """The input of an encoder; empty for a decoder-only model."""
        return self.source if self.features is None else self.features

    @property
    def encoder_rows(self) -> int:
        """Rows of the encoder's output, whose keys and values the decoder reads."""
        return len(self.source) if self.features is None else self.features.rows

    @property
    def given(self) -> list[int]:
        """Token ids of the request's prompt."""
        return list(self.source) or self.tokens[: self.prompt]

    @property
    def keys(self) -> list[int]:
        """Tokens for the comparison with other texts."""
        return (
            self.tokens
            if self.images is None
            else [*self.images.keys, *self.tokens[self.prompt :]]
        )

    @property
    def copyable(self) -> list[int]:
        """Tokens that draft tokens may be copied from: source, prompt, committed."""
        return [*self.source, *self.tokens] if self.source else self.tokens

    def with_end(self, emitted: list[int]) -> list[int]:
        """Return emitted tokens with the forced end in its place, if they reach it."""
        if self.forced_end is None or len(emitted) < self.room:
            return emitted
        return [*emitted[: self.room - 1], self.forced_end]


@runtime_checkable
class NoiseSource(Protocol):
    """Noise that a drafter samples its draft tokens with."""

    wants_probs: bool
    """Whether the rule compares distributions, so that samples must bring theirs."""
    lists: Lists
    """How the rule expects siblings to be sampled."""

    def key(self, request: Request) -> int | None:
        """Return the key of the target's noise after the text; None when greedy.

        `extended` (sampling/noise.py) gives that after draft tokens.
        """
        ...

    def drafting(
        self, request: Request, path: Sequence[int] = (), lane: int = 0
    ) -> Float[Tensor, "vocab"] | None:
        """Return Gumbel noise for the draft token after a path of draft tokens; None
        when greedy.

        Lanes give independent noise for draws of one depth; a rule that shares its
        noise has only lane 0.
        """
        ...

    def noise_of(
        self, request: Request, path: Sequence[int], tokens: Sequence[int]
    ) -> list[float] | None:
        """Return the target's noise of some tokens after a path of draft tokens, for a
        rule that shares its noise; None when greedy.
        """
        ...

    def written(self, request: Request, count: int) -> list[int] | None:
        """Return the keys of the noise that the last `count` tokens were drawn with."""
        ...


Stops = Callable[[Request, int, Float[Tensor, "vocab"]], bool]
"""(request, draft tokens of the prefix, next log-weights) -> whether to stop."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Input of a drafter: the requests of a round, read-only, and their noise."""

    requests: tuple[Request, ...]
    draws: NoiseSource
    trees: bool = True
    """Whether target and rule verify trees; if not, the first chain alone is scored."""
    floor: float = 0.0
    """Probability below which a draft token is not worth scoring."""
    pace: float = 0.0
    """Tokens a second of each request, which drafting must beat; 0 = ignore time."""
    context: int = 2**31
    """Tokens. Context length of the target."""
    stops: Stops | None = None
    """Called with the distribution after a prefix: whether the chain ends there."""
    expand: float = 0.0
    """Probability below which a token's children are not worth a draft forward."""

    def __len__(self) -> int:
        return len(self.requests)

    def reach(self, request: Request) -> int:
        """Return the largest useful depth of a draft; deeper nodes are dropped."""
        return max(0, min(request.room, self.context - len(request.tokens)) - 1)


@dataclass(frozen=True, slots=True)
class Scores:
    """Logits of the target's forward, for drafters that learn from them."""

    logits: tuple[Float[Tensor, "_ vocab"], ...]
    """Per request: raw logits (any float dtype) after its text and each draft token."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability (nats) of an emitted token under the raw target (no temperature
    or filters), and the top ones.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability), likeliest first."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Streamed output: what one round added to one request."""

    id: int
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    """One for each token."""
    text: str
    """Text that became final this round."""
    pieces: tuple[str, ...]
    """The same text, one piece a token, perhaps empty; "".join(pieces) == text."""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: StopReason = None
    drafted: int = 0
    """Draft tokens scored this round."""
    round: Round | None = None
    """How the round went; None without `SamplingParams(trace=True)`."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one request."""

    text: str
    tokens: list[int]
    """Ids of the emitted tokens, an end-of-text token included."""
    finish_reason: FinishReason
    seed: int
    stats: Stats
    prompt_tokens: list[int]
    logprobs: list[TokenLogprob] | None = None
    method: str = ""
    """How draft tokens were proposed."""
    undrafted: str | None = None
    """Why drafting was turned off, which changes no text; None if it was not."""
    stop_reason: StopReason = None
    rounds: list[Round] | None = None
    """Every round that emitted tokens; None without `SamplingParams(trace=True)`."""
    pieces: tuple[str, ...] = field(default=(), repr=False)
    """The text, one piece a token, perhaps empty."""
    origins: tuple[Origin, ...] = field(default=(), repr=False)
    """One for each token."""

    def _repr_html_(self) -> str:
        """Return the answer with the origins of its tokens, as a notebook shows it."""
        stats = self.stats
        facts = f"{stats.tokens} tokens, {stats.tokens_per_pass:.2f} per pass"
        return answer_html(zip(self.pieces, self.origins, strict=True), facts)
