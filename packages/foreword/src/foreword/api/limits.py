"""Limits of a request: the context, the cache and the vocabulary of its target."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from foreword.errors import ContextExceeded, InvalidRequest
from foreword.model import Model
from foreword.types import Adapter, SamplingParams
from foreword.types.params import NODES

if TYPE_CHECKING:
    from foreword.model.seq2seq import Seq2Seq


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of the requests of one target.

    An encoder-decoder reads its prompt in the encoder, so the answer alone is in the
    context.
    """

    target: Model
    shorter: int | None = None
    """Tokens. A context below the target's own; None: its own."""

    @property
    def context(self) -> int:
        """Tokens. Most of a prompt with its answer."""
        if self.shorter is None:
            return self.target.context
        return min(self.target.context, self.shorter)

    @property
    def longest_prompt(self) -> int:
        """Tokens."""
        rules = self.target.seq2seq
        if rules is None:
            return self.context - 1
        return rules.longest or self.context

    @property
    def longest_held(self) -> int:
        """Tokens of the longest prompt that the cache of keys and values holds too."""
        pool = self.target.backend.pool
        if pool is None or pool.limit is None:
            return self.longest_prompt
        return min(self.longest_prompt, pool.limit)

    def room(self, prompt: int) -> int:
        """Return an answer's most tokens after so many of its prompt; below 1, none."""
        return self.context - _begun(prompt, self.target.seq2seq)

    def check(
        self, tokens: Sequence[int], params: SamplingParams, rules: "Seq2Seq | None"
    ) -> None:
        """Check a prompt and its parameters, with the rules of an encoder-decoder of
        text.

        Raises ContextExceeded for a prompt or an answer that is too long, and
        InvalidRequest for a token id or an adapter that does not exist.
        """
        self._check_ids(tokens, params)
        self.adapter(params.adapter)
        longest = self.longest_prompt
        if len(tokens) > longest:
            raise ContextExceeded(
                f"cannot run this request: the prompt has {len(tokens)} tokens, the "
                f"limit is {longest}. Shorten it",
                prompt=len(tokens),
                limit=longest,
            )
        begun = _begun(len(tokens), rules)
        if begun + params.max_tokens > self.context:
            raise ContextExceeded(
                f"cannot run this request: max_tokens={params.max_tokens} after a "
                f"prompt of {begun} tokens exceeds the model's context of "
                f"{self.context}. Use at most {self.context - begun}",
                prompt=begun,
                limit=self.context,
                answer=params.max_tokens,
            )
        self._check_cache(len(tokens), params, rules)

    def _check_ids(self, tokens: Sequence[int], params: SamplingParams) -> None:
        vocab = self.target.vocab
        if not tokens:
            raise InvalidRequest(
                "cannot run this request: the prompt is empty. Give at least one token"
            )
        if not all(0 <= token < vocab for token in tokens):
            raise InvalidRequest(
                "cannot run this request: the prompt holds ids outside the vocabulary "
                f"of {vocab} tokens"
            )
        named = [
            *params.stop_token_ids,
            *params.logit_bias,
            *(params.allowed_token_ids or ()),
            *(token for word in params.bad_word_ids for token in word),
        ]
        outside = [token for token in named if token >= vocab]
        if outside:
            raise InvalidRequest(
                f"cannot run this request: token ids {outside[:5]} are outside the "
                f"vocabulary of {vocab} tokens"
            )

    def adapter(self, name: str | None) -> Adapter | None:
        """Return the adapter of this name. Raises InvalidRequest where none has it."""
        adapters = self.target.adapters
        if name is None or name in adapters:
            return name and adapters[name]
        fix = "Give LLM(adapters={...}), or leave 'adapter' out"
        if adapters:
            fix = f"Name one of {', '.join(adapters)}, or leave it out"
        raise InvalidRequest(
            f"cannot run this request: {self.target.name} has no adapter {name!r}. "
            + fix
        )

    def _check_cache(
        self, prompt: int, params: SamplingParams, rules: "Seq2Seq | None"
    ) -> None:
        pool = self.target.backend.pool
        if pool is None or pool.limit is None:
            return
        needed = pool.room(_begun(prompt, rules) + params.max_tokens + NODES)
        if rules is not None:
            needed += pool.room(prompt)
        if needed > pool.limit:
            raise InvalidRequest(
                f"cannot run this request: a prompt of {prompt} tokens, "
                f"max_tokens={params.max_tokens} and {NODES} draft tokens need keys "
                f"and values of {needed} tokens, more than cache_tokens={pool.limit}. "
                "Lower max_tokens, shorten the prompt or raise cache_tokens"
            )


def _begun(prompt: int, rules: "Seq2Seq | None") -> int:
    """Return the tokens in the context where the answer begins."""
    return prompt if rules is None else len(rules.start)
