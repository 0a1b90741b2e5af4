"""Whether a difference between two texts is rounding or a fault."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.api.llm import LLM
from foreword.model import Read
from foreword.sampling.logits import weights
from foreword.sampling.streams import NoiseStreams
from foreword.types import Completion, Request
from foreword_lab.certify.cases import Case


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which two texts of one request part."""

    prompt: tuple[int, ...]
    seed: int
    temperature: float
    position: int
    """Tokens that both texts share."""
    plain: int | None
    """Token of plain decoding; None where its text has ended."""
    drafted: int | None
    margin: float
    """Difference of both tokens' scores with noise, in float32."""
    rounding: float
    """A step of the target's dtype at its largest score; 0 where forwards of all sizes
    have equal bits.
    """

    @property
    def is_numerics(self) -> bool:
        """Whether rounding alone can explain it."""
        return self.margin <= self.rounding

    def as_json(self) -> dict[str, Any]:
        """Return plain values; null for a margin without limit."""
        margin = self.margin if math.isfinite(self.margin) else None
        return {
            "kind": "numerics" if self.is_numerics else "fault",
            "prompt": list(self.prompt),
            "seed": self.seed,
            "temperature": self.temperature,
            "position": self.position,
            "plain": self.plain,
            "drafted": self.drafted,
            "margin": margin,
            "rounding": self.rounding,
        }


def difference(
    llm: LLM, case: Case, plain: Completion, drafted: Completion
) -> Difference | None:
    """Return where two completions of a request part; None if they are equal."""
    same = plain.tokens == drafted.tokens and plain.text == drafted.text
    if same and plain.finish_reason == drafted.finish_reason:
        return None
    shared = zip(plain.tokens, drafted.tokens, strict=False)
    position = next(
        (at for at, (one, two) in enumerate(shared) if one != two),
        min(len(plain.tokens), len(drafted.tokens)),
    )
    left, right = (_token(text.tokens, position) for text in (plain, drafted))
    margin, rounding = math.inf, 0.0
    if left is not None and right is not None:
        before = plain.tokens[:position]
        margin, rounding = margin_of(llm, case, before, (left, right))
    return Difference(
        case.prompt,
        case.params.seed or 0,
        case.params.temperature,
        position,
        left,
        right,
        margin,
        rounding,
    )


def margin_of(
    llm: LLM, case: Case, before: list[int], tokens: tuple[int, int]
) -> tuple[float, float]:
    """Return how far two tokens' scores lie apart after a text, and a step of the dtype
    at its largest score; no step where forwards of all sizes have equal bits.

    Scores hold the noise, and come from one forward over the whole text.
    """
    (request,) = llm.session.prepare(list(case.prompt), case.params)
    request.tokens += before
    logits = next_logits(llm, request.id, request.tokens)[-1].float()
    scores = _scores(logits, request, llm.target.vocab)
    left, right = (float(scores[token]) for token in tokens)
    if not (math.isfinite(left) and math.isfinite(right)):
        return math.inf, 0.0
    # the native backend gives equal bits: there, any difference is a fault
    exact = llm.target.capability.backend.startswith("native")
    eps = 0.0 if exact else torch.finfo(llm.target.dtype).eps
    step = eps * float(logits.abs().max())
    return abs(left - right), step / (case.params.temperature or 1.0)


def next_logits(
    llm: LLM, id: int, tokens: list[int], keep: int = 1
) -> Float[Tensor, "keep vocab"]:
    """Return the target's scores at the last `keep` places, from one forward."""
    target = llm.target
    with llm.session.locked():
        target.open(id, len(tokens))
        try:
            return target.read([Read(id, 0, list(tokens), keep=keep)])
        finally:
            target.close(id)


def _scores(
    logits: Float[Tensor, "vocab"], request: Request, vocab: int
) -> Float[Tensor, "vocab"]:
    scores = weights(logits[None], request, [[]])[0]
    streams = NoiseStreams(vocab, shared=True, device=logits.device)
    noise = streams.drafting(request)
    return scores if noise is None else scores + noise


def _token(tokens: list[int], position: int) -> int | None:
    return tokens[position] if position < len(tokens) else None
