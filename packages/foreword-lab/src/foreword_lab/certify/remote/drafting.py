"""A draft model that runs here, beside a server elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.api.llm import LLM
from foreword.registry import PLAIN
from foreword_lab.certify.numerics import next_logits
from foreword_lab.certify.remote.ask import Scored
from foreword_lab.certify.remote.sampled import Drafter
from foreword_lab.certify.remote.texts import Drafts


def local_draft(name: str) -> Drafter:
    """Load a draft model; return how it likes the tokens of a server.

    Tokens are matched by their text, so the server's tokenizer may be another one; then
    fewer are matched, and less is found. Raises ModelError, with the reason, if the
    model cannot be loaded.
    """
    llm = LLM(name, method=PLAIN)
    tokenizer: Any = llm.tokenizer
    vocab = range(llm.target.vocab)
    texts = tokenizer.batch_decode([[token] for token in vocab])
    ids: dict[str, list[int]] = {}
    for token, text in zip(vocab, texts, strict=True):
        ids.setdefault(text, []).append(token)

    def drafter(
        body: Mapping[str, Any], tokens: Sequence[Scored], temperature: float
    ) -> Drafts:
        prompt = body.get("prompt") or llm.render(body["messages"])
        (request,) = llm.session.prepare(prompt, None)
        written = list(request.tokens)
        count = 1
        for token in tokens[:-1]:
            if token.token not in ids:
                break
            written.append(ids[token.token][0])
            count += 1
        logits = next_logits(llm, request.id, written, count).to(torch.float64)
        shares = (logits / temperature).softmax(-1)
        laid = zip(shares, tokens, strict=False)
        drafts = [_listed(row, token, ids) for row, token in laid]
        return [*drafts, *[None] * (len(tokens) - len(drafts))]

    return drafter


def _listed(
    shares: Float[Tensor, "vocab"], token: Scored, ids: Mapping[str, list[int]]
) -> dict[str, float]:
    """Return the probabilities of the tokens listed at a place."""
    return {
        name: float(shares[ids[name]].sum()) if name in ids else 0.0
        for name, _ in token.top
    }
