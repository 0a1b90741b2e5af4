"""Provides what a load is sent to: a server's /v1/completions, or an LLM in this
process.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

from foreword.api.async_llm import AsyncLLM
from foreword.bench.records import BenchRequest
from foreword.bench.serving.client import events
from foreword.bench.serving.load import Answer
from foreword.types import SamplingParams


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """A server with OpenAI's completions, streamed."""

    address: tuple[str, int]
    model: str | None = None
    """Name to send; None: none."""
    tokenizer: Any = None
    """Given for a server that takes prompts as text only, and reports usage unasked;
    others get token ids.
    """

    async def ask(self, request: BenchRequest, tenant: str) -> Answer:
        """Stream one answer. Raises RequestFailed or OSError if there is none."""
        body = {
            "prompt": list(request.prompt)
            if self.tokenizer is None
            else self._text(request),
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
            "stream": True,
            **({"model": self.model} if self.model else {}),
            **(
                {"stream_options": {"include_usage": True}}
                if self.tokenizer is None
                else {}
            ),
        }
        started = perf_counter()
        times = list[float]()
        pieces = list[str]()
        usage: dict[str, Any] | None = None
        accepted = 0
        async for event in events(self.address, "/v1/completions", body, tenant):
            usage, accepted = event.get("usage") or usage, _accepted(event) or accepted
            text = "".join(
                choice.get("text") or "" for choice in event.get("choices") or ()
            )
            if text:
                times.append(perf_counter())
                pieces.append(text)
        ended = perf_counter()
        if usage is None:  # from a server that sends an event a token
            usage = {"completion_tokens": len(times)}
        return Answer(
            started=started,
            first=times[0] if times else ended,
            last=times[-1] if times else ended,
            text="".join(pieces),
            tokens=usage["completion_tokens"],
            cached=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
            accepted=accepted,
        )

    def _text(self, request: BenchRequest) -> str:
        """Return the prompt as text, without a first token that the server
        adds itself.
        """
        ids = list(request.prompt)
        text = self.tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        first = self.tokenizer.bos_token
        return (
            text
            if self.tokenizer(text)["input_ids"] == ids or not first
            else text.removeprefix(first)
        )


def _accepted(event: dict[str, Any]) -> int:
    """Return the accepted draft tokens so far, as our server or llama.cpp's reports
    them; 0 where an event does not.
    """
    ours = (event.get("metrics") or {}).get("speculative_decoding") or {}
    theirs = event.get("timings") or {}
    return ours.get("num_accepted_draft_tokens") or theirs.get("draft_n_accepted") or 0


@dataclass(frozen=True, slots=True)
class InProcess:
    """The LLM of this process, without HTTP."""

    llm: AsyncLLM

    async def ask(self, request: BenchRequest, tenant: str) -> Answer:
        """Generate one answer."""
        params = SamplingParams(
            temperature=request.temperature,
            seed=request.seed,
            max_tokens=request.max_tokens,
            tenant=tenant,
        )
        started = perf_counter()
        deltas = []
        times = []
        async for delta in self.llm.stream(list(request.prompt), params):
            deltas.append(delta)
            times.append(perf_counter())
        return Answer(
            started=started,
            first=times[0],
            last=times[-1],
            text="".join(delta.text for delta in deltas),
            tokens=sum(len(delta.tokens) for delta in deltas),
        )
