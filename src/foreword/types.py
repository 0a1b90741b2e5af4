"""The vocabulary of the loop: what is asked for, what is guessed, what is decided, what comes out.

Knows shapes and invariants; knows nothing about models, tokenizers or methods.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from foreword.guesses import Draft, Tree, Verdict
from foreword.params import LogitsProcessor, SamplingParams
from foreword.stats import Clock, Stats

__all__ = [
    "Batch",
    "Clock",
    "Completion",
    "Delta",
    "Draft",
    "Draws",
    "FinishReason",
    "Lists",
    "LogitsProcessor",
    "Noise",
    "Origin",
    "Reader",
    "SamplingParams",
    "Scores",
    "Sequence",
    "Stats",
    "Stops",
    "TokenLogprob",
    "Tree",
    "Verdict",
    "Verify",
]

FinishReason = Literal["stop", "length", "abort"]
Lists = Literal["one", "distinct", "independent"]
"""How the guesses after one text are drawn for a rule: a single one, without replacement, or independently."""
Origin = Literal["accepted", "bonus"]
"""Where a token came from: *accepted* was drafted and agreed to; *bonus* is the one the target itself adds."""


@runtime_checkable
class Reader(Protocol):
    """Turns a growing list of tokens into text; llm.py owns the tokenizer behind it."""

    def push(self, token: int) -> tuple[str, bool]:
        """Read one token. Returns the text that is now certain, and whether a stop string was completed."""
        ...

    def finish(self) -> str:
        """Returns what was held back: an unfinished character, or the beginning of a stop string."""
        ...


@dataclass(slots=True, eq=False)
class Sequence:
    """One request while it runs. The only mutable type; written by the engine and commit.py."""

    id: int
    tokens: list[int]
    """The prompt and everything committed."""
    prompt: int
    """Length of the prompt, in tokens."""
    params: SamplingParams
    seed: int
    """What every draw is keyed by; params.seed, or a random one."""
    eos: frozenset[int] = frozenset()
    """Token ids that end this sequence."""
    reader: Reader | None = None
    """Set when text is wanted or a stop string must be seen."""
    prediction: tuple[int, ...] = ()
    """params.prediction as token ids."""
    cached: int = 0
    """Tokens whose keys and values the target holds: 0 <= cached < len(tokens). The rest is *pending*."""
    rounds: int = 0
    """Rounds of guess and score so far; keys the noise of rules that must not reuse it."""
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    """What ended this sequence before its time, where its own parameters failed."""
    undrafted: str | None = None
    """Why drafting was turned off for this sequence; None while it was not."""
    unread: deque[Delta] = field(default_factory=deque)
    """What was committed and nobody has read yet."""
    stats: Stats = field(default_factory=Stats)

    @property
    def pending(self) -> list[int]:
        """Committed tokens that the next forward must read."""
        return self.tokens[self.cached :]

    @property
    def produced(self) -> int:
        """Tokens written so far, the prompt not counted."""
        return len(self.tokens) - self.prompt

    @property
    def room(self) -> int:
        """Tokens that may still be written."""
        return self.params.max_tokens - self.produced


@runtime_checkable
class Draws(Protocol):
    """What a drafter draws its guesses with."""

    wants_probs: bool
    """The rule compares laws: a drawn guess must come with the law it was drawn from."""
    lists: Lists
    """How the rule expects several guesses after one text to be drawn."""

    def drafting(self, sequence: Sequence, depth: int, lane: int = 0) -> Float[Tensor, "vocab"] | None:
        """Gumbel noise for the guess `depth` tokens after the last committed one (0 = the next); None when greedy.

        Lanes are independent of each other, for draws of one depth; a rule that shares its noise has only one.
        """
        ...

    def foreseeing(self, sequence: Sequence, count: int) -> Float[Tensor, "count vocab"] | None:
        """The same for guesses 0 to count - 1 at once, under a rule that shares its noise; None when greedy."""
        ...


Stops = Callable[[Sequence, int, Float[Tensor, "vocab"]], bool]
"""(sequence, guesses of the prefix, log-weights of the law that follows) -> whether nothing is to be drawn from it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything a drafter may look at: the sequences that run this round, read-only, and what it may draw with."""

    sequences: tuple[Sequence, ...]
    draws: Draws
    trees: bool = True
    """Target and rule judge trees; where not, only the first chain of a tree is looked at."""
    floor: float = 0.0
    """A guess that the target comes to with a smaller chance is not worth its scoring."""
    pace: float = 0.0
    """Tokens a second at which each text grows: what a second of guessing must earn. 0 = time is not looked at."""
    context: int = 2**31
    """Tokens that the target reads at most."""
    stops: Stops | None = None
    """Asked with the law that follows a prefix before a guess is drawn from it: is the chain to end there?"""

    def __len__(self) -> int:
        return len(self.sequences)

    def reach(self, sequence: Sequence) -> int:
        """How many guesses one after another can be of use; the target adds a token itself. Deeper ones are dropped."""
        return max(0, min(sequence.room, self.context - len(sequence.tokens)) - 1)


@dataclass(frozen=True, slots=True)
class Scores:
    """What the target's forward said about a round, for drafters that learn from it."""

    logits: tuple[Float[Tensor, "_ vocab"], ...]
    """For each sequence, after its last committed token and after each of its guesses in use (raw, any float)."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of a written token under the raw target (no temperature, no filters), and the likeliest ones."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log-probability), likeliest first."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one round added to one sequence."""

    id: int
    tokens: tuple[int, ...]
    origins: tuple[Origin, ...]
    """One for each token."""
    text: str
    """Text that became certain this round."""
    pieces: tuple[str, ...]
    """The same text, one piece for each token (some may be empty); "".join(pieces) == text."""
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    drafted: int = 0
    """Guesses scored this round."""


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one request."""

    text: str
    tokens: list[int]
    """Ids of the tokens written, an end-of-text token included."""
    finish_reason: FinishReason
    seed: int
    stats: Stats
    prompt_tokens: list[int]
    logprobs: list[TokenLogprob] | None = None
    method: str = ""
    """How draft tokens were proposed."""
    undrafted: str | None = None
    """Why drafting was turned off on the way; None where it was not. The text is the same either way."""


@dataclass(frozen=True, slots=True)
class Noise:
    """All the randomness of one decision, as numbers: a rule that gets the same noise decides the same.

    A column is a place to draw at: 0 after the last committed token, i + 1 after node i.

    `gumbel` belongs to `match` and is shared with the drafter; the uniform streams belong to the other rules and are
    independent of it, of each other and of what the drafter drew with (see docs/laws.md).
    """

    gumbel: Float[Tensor, "batch column vocab"] | None
    """Standard Gumbel noise of the position of each column; None = zero."""
    accept: Float[Tensor, "batch column"]
    """Uniform in (0, 1): one for each node's acceptance test (the last one is spare)."""
    bonus: Float[Tensor, "batch column"]
    """Uniform in (0, 1): the draw of the token that follows the accepted path ending at each node."""


Verify = Callable[[Float[Tensor, "batch column vocab"], Draft, Noise], Verdict]
"""A rule. Takes the target's log-weights after each node (unnormalised log-probabilities, -inf = forbidden; column 0
follows the last committed token, column i + 1 follows node i), the draft and the noise; decides. Pure."""
