"""How far a quantized model is from the same model in bfloat16: KL divergence by
domain, on the fixed prompts.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.model import Model, Read
from foreword.prompts import load

SETS = ("in-domain", "out-of-domain")
SEQUENCE = -2
"""Id of the sequence that is read; no request has it."""
ROWS = 64
"""Tokens of a forward whose logits are held at once, in float32."""
LONGEST = 256
"""Tokens read of a prompt."""
CONTEXT = 2048
"""Tokens read of all prompts of a kind, one after the other, as one long text."""


def divergence(
    whole: Model,
    other: Model,
    tokenize: Callable[[Sequence[Mapping[str, str]]], Sequence[int]],
    *,
    long: bool = False,
) -> dict[str, float]:
    """Return the mean KL divergence, in nats a token, of `other` from `whole` after
    every token of the prompts.

    One number for each kind of prompts and each category of the first kind. `tokenize`
    renders a conversation. With `long` another one for each kind, over the second half
    of a long text: all its prompts, joined.
    """
    sums: dict[str, list[float]] = {}
    for kind in SETS:
        joined: list[int] = []
        for prompt in load(kind):
            tokens = list(tokenize(prompt.messages))
            joined += tokens
            each = _divergences(
                whole, other, tokens[: min(LONGEST, whole.context - 1)]
            ).tolist()
            for name in (kind, f"{kind}: {prompt.category}"):
                sums.setdefault(name, []).extend(each)
        if long:
            each = _divergences(
                whole, other, joined[: min(CONTEXT, whole.context - 1)]
            ).tolist()
            sums[f"{kind}, after {len(each) // 2:,} to {len(each):,} tokens"] = each[
                len(each) // 2 :
            ]
    return {name: sum(each) / len(each) for name, each in sums.items()}


def _divergences(
    whole: Model, other: Model, tokens: Sequence[int]
) -> Float[Tensor, "tokens"]:
    for model in (whole, other):
        model.open(SEQUENCE, len(tokens))
    parts = []
    try:
        for past in range(0, len(tokens), ROWS):
            part = list(tokens[past : past + ROWS])
            mine, theirs = (
                model.read([Read(SEQUENCE, past, part, keep=len(part))])
                .double()
                .log_softmax(-1)
                for model in (whole, other)
            )
            parts.append((mine.exp() * (mine - theirs)).sum(-1))
    finally:
        for model in (whole, other):
            model.close(SEQUENCE)
    return torch.cat(parts)
