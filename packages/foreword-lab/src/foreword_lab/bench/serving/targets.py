"""Targets of a load: a server's /v1/completions, or an LLM in this process."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from foreword.api.async_llm import AsyncLLM
from foreword.errors import ForewordError
from foreword.types import SamplingParams
from foreword_lab.bench.records import BenchRequest
from foreword_lab.bench.serving.load import Answer, longest

DATA, DONE = b"data:", b"[DONE]"


class RequestFailed(ForewordError):
    """A request that a server refused or broke off."""


async def events(
    address: tuple[str, int], path: str, body: Mapping[str, Any], key: str = ""
) -> AsyncIterator[dict[str, Any]]:
    """POST a body as JSON, and yield each server-sent event as JSON, when it arrives.

    `key`: API key. Raises RequestFailed for a status that is not 200, an error within
    the stream, or one that ends early.
    """
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(_request(address, path, body, key))
        await writer.drain()
        status, chunked = await _head(reader)
        if status != 200:
            raise RequestFailed(
                f"cannot get an answer: status {status}. "
                f"{(await reader.read(400)).decode(errors='replace')}"
            )
        async for line in _lines(reader, chunked):
            if not line.startswith(DATA):
                continue
            data = line[len(DATA) :].strip()
            if data == DONE:
                return
            event = json.loads(data)
            if event.get("error"):
                raise RequestFailed(f"cannot get an answer: {event['error']}")
            yield event
    finally:
        writer.close()


def _request(
    address: tuple[str, int], path: str, body: Mapping[str, Any], key: str
) -> bytes:
    content = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {address[0]}:{address[1]}",
        "Connection: close",
    ]
    lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    lines += [f"Authorization: Bearer {key}"] if key else []
    return "\r\n".join([*lines, "", ""]).encode() + content


async def _head(reader: asyncio.StreamReader) -> tuple[int, bool]:
    """Read status line and headers; return the status, and whether it is chunked."""
    first = (await reader.readline()).split()
    if len(first) < 2:
        raise RequestFailed("cannot get an answer: the server closed the connection")
    chunked = False
    while line := (await reader.readline()).strip().lower():
        chunked |= line.startswith(b"transfer-encoding:") and b"chunked" in line
    return int(first[1]), chunked


async def _lines(reader: asyncio.StreamReader, chunked: bool) -> AsyncIterator[bytes]:
    """Yield the lines of a body (RFC 9112, section 7.1)."""
    rest = b""
    while part := await (_chunk(reader) if chunked else reader.read(2**16)):
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    """Read one chunk; b"" is the last."""
    try:
        size = int((await reader.readline()).split(b";")[0], 16)
        return (await reader.readexactly(size + 2))[:-2]
    except (ValueError, asyncio.IncompleteReadError) as error:
        raise RequestFailed("cannot read the answer: the stream ended early") from error


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
            gap=longest(times),
            tokens=usage["completion_tokens"],
            cached=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
            accepted=accepted,
        )

    def _text(self, request: BenchRequest) -> str:
        """Return the prompt as text, without a first token that the server adds."""
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
            gap=longest(times),
            tokens=sum(len(delta.tokens) for delta in deltas),
        )
