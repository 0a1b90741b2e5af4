"""Noise streams of the drafter and the rule, per request and round."""

from array import array
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.sampling.noise import (
    Stream,
    extend,
    extended,
    gumbel,
    gumbel_of,
    start,
    uniform,
)
from foreword.types import Draft, Lists, Noise, Request


def text_keys(request: Request) -> "array[int]":
    """Return the key of the noise of each answer token, and of the next one.

    A key is a hash of the seed, of the material that the model reads besides tokens,
    and of every token before, of prompt and answer alike.
    """
    keys, tokens = request.noise_keys, request.tokens
    if not keys:
        key = start(request.seed)
        for part in (request.material, request.source, tokens[: request.prompt]):
            key = extended(key, part)
        keys.append(key)
    for token in tokens[request.prompt + len(keys) - 1 :]:
        keys.append(extend(keys[-1], token))
    return keys


class NoiseStreams:
    """Noise keyed by the seed and the text so far, so that batch, device and drafter
    never change it.

    With `shared` the drafter samples with the target's noise (rule `match`), that of a
    draft token by the text and the draft tokens before it. Otherwise its noise is an
    independent stream, and the round is part of every counter: the rule may have used
    noise that it then rejected, and must not reuse it.
    """

    def __init__(
        self,
        vocab: int,
        *,
        shared: bool,
        lists: Lists = "one",
        device: torch.device | None = None,
    ) -> None:
        self.wants_probs = not shared
        self.lists: Lists = lists
        self._vocab = vocab
        self._device = device

    def key(self, request: Request) -> int | None:
        """Return the key of the target's noise after the text; None when greedy.

        `extended` (sampling/noise.py) gives that after draft tokens.
        """
        if request.params.greedy:
            return None
        return text_keys(request)[-1]

    def drafting(
        self, request: Request, path: Sequence[int] = (), lane: int = 0
    ) -> Float[Tensor, "vocab"] | None:
        """Return Gumbel noise for the draft token after a path of draft tokens; None
        when greedy.

        Lanes give independent noise for draws of one depth; a rule that shares its
        noise has only lane 0.
        """
        if request.params.greedy:
            return None
        if not self.wants_probs:
            key = extended(text_keys(request)[-1], path)
            return gumbel([key], self._vocab, device=self._device)[0]
        return gumbel(
            [text_keys(request)[-1]],
            self._vocab,
            stream=Stream.DRAFT,
            depths=[len(path)],
            rounds=[request.rounds],
            lanes=[lane],
            device=self._device,
        )[0]

    def noise_of(
        self, request: Request, path: Sequence[int], tokens: Sequence[int]
    ) -> list[float] | None:
        """Return the target's noise of some tokens after a path of draft tokens, for a
        rule that shares its noise; None when greedy.
        """
        key = self.key(request)
        if key is None:
            return None
        return gumbel_of(extended(key, path), tokens, self._vocab)

    def written(self, request: Request, count: int) -> list[int] | None:
        """Return the keys of the noise that the last `count` tokens were drawn with."""
        if request.params.greedy:
            return None
        return text_keys(request)[-count - 1 : -1].tolist()

    def verifying(self, requests: tuple[Request, ...], draft: Draft) -> Noise:
        """Return the noise of one verification, which its rule does not share."""
        return Noise(
            None,
            self._uniform(requests, draft, Stream.ACCEPT),
            self._uniform(requests, draft, Stream.BONUS),
        )

    def _uniform(
        self, requests: tuple[Request, ...], draft: Draft, stream: Stream
    ) -> Float[Tensor, "batch column"]:
        lanes = list(range(draft.nodes + 1))
        rows = [
            uniform(
                [text_keys(request)[-1]] * len(lanes),
                stream=stream,
                rounds=[request.rounds] * len(lanes),
                lanes=lanes,
                device=self._device,
            )
            for request in requests
        ]
        return torch.stack(rows)
