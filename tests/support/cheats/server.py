"""A server with OpenAI's API over the bundled pair that draws tokens by a cheat."""

from contextlib import AbstractContextManager
from threading import Lock
from typing import Any

import numpy as np

from broken_servers import Body, answering
from cheats.draws import Cheat, Place, shares
from foreword import LLM
from foreword.model import Read

HOT = 2.0
"""Temperature of the drafter, beyond the request's: it is often wrong."""
LISTED = 20
"""Tokens. The most that are listed, as by most servers."""


class Scores:
    """Next-token logits of a model after texts, each computed once."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self.lock = Lock()
        self.rows: dict[tuple[int, ...], np.ndarray] = {}

    def __call__(self, tokens: tuple[int, ...]) -> np.ndarray:
        with self.lock:
            if tokens not in self.rows:
                self.rows[tokens] = self._read(tokens)
            return self.rows[tokens]

    def _read(self, tokens: tuple[int, ...]) -> np.ndarray:
        target = self.llm.target
        with self.llm.session.locked():
            target.open(0, len(tokens))
            rows = target.read([Read(0, 0, list(tokens))])
            target.close(0)
        return rows[-1].double().numpy()


class Planted:
    """Answers of one cheat; `noise`: standard deviation of each forward's logits."""

    def __init__(
        self, target: Scores, draft: Scores, cheat: Cheat, noise: float = 0.0
    ) -> None:
        self.target, self.draft = target, draft
        self.cheat, self.noise = cheat, noise
        self.rounding = np.random.default_rng(0)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        llm = self.target.llm
        prompt = body.get("prompt") or llm.render(body["messages"])
        (request,) = llm.session.prepare(prompt, None)
        tokens = tuple(request.tokens)
        dice = np.random.default_rng([body.get("seed", 0), len(tokens), tokens[-4]])
        records = []
        for index in range(body.get("max_tokens", 16)):
            logits = self.target(tokens)
            if self.noise:
                logits = logits + self.rounding.normal(size=len(logits)) * self.noise
            draft = self.draft(tokens) / HOT
            place = Place(logits, draft, body.get("temperature", 1.0), dice, index)
            token = self.cheat(place)
            records.append(self._record(token, logits, body))
            tokens = (*tokens, token)
        return self._choice(records, body)

    def _record(
        self, token: int, logits: np.ndarray, body: dict[str, Any]
    ) -> dict[str, Any]:
        asked = body.get("top_logprobs") or int(body.get("logprobs") or 0)
        logs = np.log(shares(logits, 1.0))
        order = np.argsort(-logs)[: min(asked, LISTED)]
        top = [self._named(int(one), logs) for one in order]
        return {**self._named(token, logs), "top_logprobs": top}

    def _named(self, token: int, logs: np.ndarray) -> dict[str, Any]:
        name = self.target.llm.tokenizer.decode([token])
        return {"token": name, "logprob": float(logs[token])}

    def _choice(
        self, records: list[dict[str, Any]], body: dict[str, Any]
    ) -> dict[str, Any]:
        text = "".join(one["token"] for one in records)
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        if "messages" in body:
            choice["message"] = {"role": "assistant", "content": text}
            choice["logprobs"] = {"content": records} if body.get("logprobs") else None
            return choice
        choice["text"] = text
        if body.get("logprobs"):
            choice["logprobs"] = {
                "tokens": [one["token"] for one in records],
                "token_logprobs": [one["logprob"] for one in records],
                "top_logprobs": [
                    {each["token"]: each["logprob"] for each in one["top_logprobs"]}
                    for one in records
                ],
            }
        return choice


REFUSED = ("tools", "response_format", "speculative", "stop", "logit_bias")


def planted(server: Planted) -> AbstractContextManager[str]:
    """Run a server; yield its address."""

    def answer(path: str, body: Body | None) -> tuple[int, Body]:
        if body is None:
            return 200, {"data": [{"id": "planted"}]}
        if any(name in body for name in REFUSED):
            return 400, {"error": "not supported"}
        return 200, {"choices": [server.answer(body)]}

    return answering(answer)
