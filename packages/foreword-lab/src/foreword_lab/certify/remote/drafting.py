"""A drafter that runs here, beside a server elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from foreword.api.llm import LLM
from foreword.model import Read
from foreword.registry import PLAIN
from foreword_lab.certify.remote.ask import Scored

SEQUENCE = 0
"""Id of the only sequence of the draft model."""


class LocalDraft:
    """A draft model, which orders the tokens of a server by how it likes them.

    Tokens are matched by their text, so the server's tokenizer may be another one; then
    fewer are matched, and less is found.
    """

    def __init__(self, name: str) -> None:
        """Load a model. Raises ModelError, with the reason, if it cannot be loaded."""
        self._llm = LLM(name, method=PLAIN)
        tokenizer: Any = self._llm.tokenizer
        vocab = range(self._llm.target.vocab)
        texts = tokenizer.batch_decode([[token] for token in vocab])
        self._ids: dict[str, list[int]] = {}
        for token, text in zip(vocab, texts, strict=True):
            self._ids.setdefault(text, []).append(token)

    def laws(
        self, body: Mapping[str, Any], tokens: Sequence[Scored], temperature: float
    ) -> tuple[dict[str, float] | None, ...]:
        """Return, for each token of an answer, the draft model's probabilities of the
        tokens listed there; None after a token that it does not have.
        """
        written = self._prompt(body)
        length = len(written)
        for token in tokens[:-1]:
            ids = self._ids.get(token.token)
            if ids is None:
                break
            written.append(ids[0])
        count = min(len(tokens), len(written) - length + 1)
        shares = self._shares(written, count, temperature)
        laws = [
            {name: self._mass(row, name) for name, _ in token.top}
            for row, token in zip(shares, tokens, strict=False)
        ]
        return (*laws, *[None] * (len(tokens) - len(laws)))

    def _mass(self, row: torch.Tensor, name: str) -> float:
        ids = self._ids.get(name)
        return float(row[ids].sum()) if ids else 0.0

    def _shares(
        self, written: list[int], count: int, temperature: float
    ) -> torch.Tensor:
        """Return the probabilities of the last `count` places, in float64."""
        target = self._llm.target
        with self._llm.session.locked():
            target.open(SEQUENCE, len(written))
            try:
                logits = target.read([Read(SEQUENCE, 0, written, keep=count)])
            finally:
                target.close(SEQUENCE)
        return (logits.double() / temperature).softmax(-1)

    def _prompt(self, body: Mapping[str, Any]) -> list[int]:
        prompt = body.get("prompt") or self._llm.render(body["messages"])
        (request,) = self._llm.session.prepare(prompt, None)
        return list(request.tokens)
