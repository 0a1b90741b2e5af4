"""Rounds of the rules with noise of their own on a text that is known, for chains.

Given the text, the number of accepted draft tokens has a distribution that depends only
on how likely the drafter and the target find the text's tokens (`Rule.given_text`).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.engine.speculator import Speculator
from foreword.errors import InvalidRequest
from foreword.model import Model
from foreword.sampling.draw import drawn_tokens
from foreword.sampling.noise import Stream, extended, uniform
from foreword.sampling.streams import NoiseStreams, text_keys
from foreword.types import Draft, Noise, Request, Verdict
from foreword.verify import RULES, Rule
from foreword.verify.rejection import chain_distributions
from foreword.verify.residual import ratio
from foreword.verify.verifier import Verifier

FORCED = 1e30
"""Added to the log-weight of the text's token: more than any log-weight, and finite, so
that a forbidden token stays forbidden.
"""
LANE = 2**20
"""Lane of the uniform number of a round: beyond all that wrote a text, since the number
must not depend on the text.
"""


def check_rule(name: str) -> None:
    """Raise InvalidRequest unless a known text can be replayed under this rule."""
    RULES.check(name)
    rule = RULES[name]
    if rule.given_text is None and not rule.shares_noise:
        raise InvalidRequest(
            f"cannot replay under {name!r}: it is not known how far it accepts a draft "
            "of a known text. Name one of docs/rules.md"
        )


class RuleOnText:
    """A rule that accepts as it would have, given that the target wrote this text; for
    one request.

    A drafter that samples is made to sample the text's tokens, so the refused ones
    differ from a real round's. Chosen draft tokens are accepted while they equal the
    text.
    """

    def __init__(
        self, target: Model, text: Sequence[int], rule: Rule, checkable: bool
    ) -> None:
        """`checkable`: whether the target's tokens under the seed are the text's."""
        self.rule = Rule(name=rule.name, verify=self._verify, lists="one")
        self.differs = False
        """Whether the target writes another text."""
        self._reached = rule.given_text
        self._text = list(text)
        self._checkable = checkable
        self._draws = _TextDraws(target, self._text)

    def install(self, speculator: Speculator) -> None:
        """Have a speculator draft the text's tokens and verify them by this rule."""
        speculator.draws = self._draws
        speculator.verifier = Verifier(self.rule, self._draws)

    def _verify(
        self, weights: Float[Tensor, "1 column vocab"], draft: Draft, noise: Noise
    ) -> Verdict:
        request = self._draws.request
        start = len(request.tokens)
        text = self._text[start : start + draft.nodes + 1]
        ids = draft.trees[0].tokens
        accepted = 0
        while (
            accepted < min(len(ids), len(text) - 1) and ids[accepted] == text[accepted]
        ):
            accepted += 1
        is_sampled = draft.probs is not None
        if is_sampled and not request.params.greedy:
            equal = text[:accepted]
            reached = self._probabilities(weights, draft, equal)
            number = float(noise.accept[0, 0])
            accepted = sum(number < one for one in reached)
            self._check(weights[0], request, text[: accepted + 1])
        return Verdict([list(range(accepted))], [text[accepted]], draft.nodes)

    def _probabilities(
        self, weights: Tensor, draft: Draft, text: Sequence[int]
    ) -> list[float]:
        """Return the probabilities that at least 1, 2, … tokens are accepted."""
        if self._reached is None or not text:
            return []
        p, q = chain_distributions(weights.double(), draft)
        count = len(text)
        tokens = torch.tensor(text, device=p.device)
        ratios = ratio(q[0, :count], p[0, :count], tokens)
        return self._reached(ratios.tolist())

    def _check(self, weights: Tensor, request: Request, text: Sequence[int]) -> None:
        """Note whether the target writes another text than this one."""
        ids = list(text)
        rows = weights[: len(ids)]
        if self._checkable:
            key = text_keys(request)[-1]
            draws = [(1.0, extended(key, ids[:at])) for at in range(len(ids))]
            self.differs |= drawn_tokens(rows, draws).tolist() != ids
        else:
            chosen = rows[range(len(ids)), ids]
            self.differs |= bool((chosen == -torch.inf).any())


class _TextDraws(NoiseStreams):
    """Noise under which a drafter samples the tokens of a text."""

    request: Request
    """The request that is verified."""

    def __init__(self, target: Model, text: Sequence[int]) -> None:
        super().__init__(target.vocab, shared=False, device=target.device)
        self._text = text

    def drafting(
        self, request: Request, path: Sequence[int] = (), lane: int = 0
    ) -> Float[Tensor, "vocab"] | None:
        if request.params.greedy:
            return None
        noise = torch.zeros(self._vocab, device=self._device, dtype=torch.float32)
        at = min(len(request.tokens) + len(path), len(self._text) - 1)
        noise[self._text[at]] = FORCED
        return noise

    def verifying(self, requests: tuple[Request, ...], draft: Draft) -> Noise:
        (self.request,) = requests
        number = uniform(
            [text_keys(self.request)[-1]],
            stream=Stream.ACCEPT,
            rounds=[self.request.rounds],
            lanes=[LANE],
            device=self._device,
        )
        return Noise(None, number[None], number[None])
