"""`foreword generate --batch`: answer a file of prompts concurrently, as JSON lines;
continue an interrupted run.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from foreword.errors import ForewordError, InvalidRequest, named
from foreword.types.params import PARAMETER_NAMES, SamplingParams

if TYPE_CHECKING:
    from foreword.api.llm import LLM
    from foreword.chats.prompts import Rendered
    from foreword.types import Delta

RECORD_FIELDS, TEXTS = ("prompt", "messages", "id"), ".txt"
LINE_PARAMETERS = tuple(
    name for name in PARAMETER_NAMES if name not in ("processors", "trace")
)
"""Sampling parameters that a line may set for itself."""
AHEAD = 2
"""Prompts in flight per slot, so that no slot is empty while the loop serves the
others.
"""
Prompt = str | list[dict[str, str]]
"""A text or the messages of a conversation."""


@dataclass(frozen=True, slots=True)
class Job:
    """One requested answer, or the error that prevents it."""

    identity: dict[str, Any]
    """First fields of its output line: index of the input line, its id, and the number
    of the answer if several.
    """
    fingerprint: str
    """Hash of everything that the answer depends on."""
    prompt: Prompt = ""
    params: SamplingParams = field(default_factory=SamplingParams)
    sized: bool = False
    """Whether the line sets max_tokens."""
    error: str = ""

    @property
    def key(self) -> tuple[int, int]:
        """Return (line, answer)."""
        return self.identity["index"], self.identity.get("answer", 0)


def jobs(
    text: str,
    name: str,
    params: SamplingParams,
    seeds: Callable[[int | None], Sequence[int]],
    context: object,
) -> list[Job]:
    """Return the jobs of a file's non-empty lines. `context` is what else the answers
    depend on.

    A line that cannot be served becomes a job with an error. Raises InvalidRequest if
    there are no lines.
    """
    requests: list[Job] = []
    lines = [line for line in text.split("\n") if line.strip()]
    for index, line in enumerate(lines):
        identity: dict[str, Any] = {"index": index}
        inputs = repr((line, context, replace(params, processors=())))
        fingerprint = blake2b(
            inputs.encode("utf-8", "backslashreplace"), digest_size=8
        ).hexdigest()
        try:
            record = (
                {"prompt": line.removesuffix("\r")}
                if name.endswith(TEXTS)
                else _record(line)
            )
            identity |= {"id": record["id"]} if "id" in record else {}
            own = {
                key: _plain(key, value)
                for key, value in record.items()
                if key in LINE_PARAMETERS
            }
            line_params = replace(params, **own)
        except InvalidRequest as error:
            requests.append(Job(identity, fingerprint, error=str(error)))
            continue
        line_seeds = seeds(line_params.seed)
        requests += [
            Job(
                identity | ({"answer": number} if len(line_seeds) > 1 else {}),
                fingerprint,
                record["prompt"] if "prompt" in record else record["messages"],
                replace(line_params, seed=seed),
                "max_tokens" in own,
            )
            for number, seed in enumerate(line_seeds)
        ]
    if not requests:
        raise InvalidRequest(
            f"cannot answer {name}: it has no prompts. Give a JSON object per line, or "
            "lines of text in a .txt file"
        )
    return requests


def _record(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(
            f"cannot read the line: it is not JSON: {error}. Give a JSON object"
        ) from error
    if not isinstance(record, dict) or ("prompt" in record) == ("messages" in record):
        raise InvalidRequest(
            "cannot read the line: it needs either a prompt or messages. Give "
            '{"prompt": "…"} or {"messages": […]}'
        )
    for name in record:
        if name not in (*RECORD_FIELDS, *LINE_PARAMETERS):
            near = get_close_matches(name, (*RECORD_FIELDS, *LINE_PARAMETERS), 1)
            hint = f"Did you mean {near[0]!r}?" if near else "Leave it out"
            raise InvalidRequest(
                f"cannot use parameter {name!r}: it does not exist. {hint}"
            )
    if not isinstance(record.get("prompt", ""), str) or not isinstance(
        record.get("messages", []), list
    ):
        raise InvalidRequest(
            "cannot read the line: types are wrong. Give a prompt as a string, or "
            "messages as a list"
        )
    if not record.get("prompt", "x").strip():
        raise InvalidRequest(
            "cannot answer the line: the prompt is empty. Give some text"
        )
    return record


def _plain(name: str, value: Any) -> Any:
    """Return the value with integer keys where JSON only has strings."""
    if name == "logit_bias" and isinstance(value, dict):
        return {
            int(key) if key.isdecimal() else key: bias for key, bias in value.items()
        }
    return value


def done(out: Path, requests: Sequence[Job]) -> set[tuple[int, int]]:
    """Return the jobs that a file has answers to; remove its lines with errors and an
    incomplete last line.

    Raises InvalidRequest if it holds anything else, or answers to other prompts.
    """
    content = out.read_text(encoding="utf-8", errors="replace") if out.exists() else ""
    expected = {job.key: job.fingerprint for job in requests}
    kept: list[str] = []
    keys: set[tuple[int, int]] = set()
    for line in content.split("\n")[:-1]:
        try:
            record = json.loads(line)
            key = (record["index"], record.get("answer", 0))
            fingerprint, failed = record["asked"], "error" in record
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidRequest(
                f"cannot continue {out}: it holds something else than answers. Give "
                "another file"
            ) from None
        if expected.get(key) != fingerprint:
            raise InvalidRequest(
                f"cannot continue {out}: it holds answers to other prompts or "
                "settings. Give another file"
            )
        if not failed:
            kept.append(line + "\n")
            keys.add(key)
    if (rest := "".join(kept)) != content:
        partial = out.with_name(f".{out.name}.partial")
        partial.write_text(rest, encoding="utf-8")
        partial.replace(out)
    return keys


@dataclass(slots=True)
class Tally:
    """Counts of finished jobs."""

    answers: int = 0
    failed: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Runner:
    """Concurrent execution of jobs.

    `read` tokenizes a prompt; `fitted` limits the length to the context.
    """

    llm: LLM
    read: Callable[[Prompt], Rendered]
    fitted: Callable[[SamplingParams, Rendered], SamplingParams]

    def run(
        self,
        requests: Sequence[Job],
        write: Callable[[Mapping[str, Any]], None],
        slots: int,
    ) -> Tally:
        """Answer all requests, `slots` at a time, and write each answer when it is
        complete.
        """
        tally = Tally()
        waiting = deque(requests)
        active = deque[tuple[Job, Generator[dict[str, Any] | None]]]()
        try:
            while waiting or active:
                while waiting and len(active) < AHEAD * slots:
                    active.append(((job := waiting.popleft()), self._answer(job)))
                job, steps = active.popleft()
                outcome = _next(steps)
                if outcome is None:
                    active.append((job, steps))
                    continue
                write({**job.identity, "asked": job.fingerprint, **outcome})
                tally.answers += 1
                tally.failed += "error" in outcome
                tally.tokens += len(outcome.get("tokens", ()))
        finally:
            for _, steps in active:
                steps.close()
        return tally

    def _answer(self, job: Job) -> Generator[dict[str, Any] | None]:
        """Yield None while the answer is generated, and its output fields in
        the end.
        """
        from foreword.cli.common.session import Answer

        if job.error:
            raise InvalidRequest(job.error)
        ids = self.read(job.prompt)
        params = job.params if job.sized else self.fitted(job.params, ids)
        (sequence,) = self.llm.session.prepare(ids, params)
        answer = Answer(params.seed or 0, stats=sequence.stats)
        stream = self.llm.session.stream(sequence)
        deltas = cast("Generator[Delta]", stream)
        try:
            for delta in deltas:
                answer.add(delta)
                yield None
        finally:
            deltas.close()
        fields = {
            "text": answer.text,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
            "seed": answer.seed,
            "prompt_tokens": len(ids),
            "tokens": answer.tokens,
            "rounds": answer.stats.rounds,
            "drafted": answer.stats.drafted,
            "accepted": answer.stats.accepted,
        }
        yield fields | (
            {"logprobs": [asdict(one) for one in answer.logprobs]}
            if answer.logprobs
            else {}
        )


def _next(steps: Generator[dict[str, Any] | None]) -> dict[str, Any] | None:
    """Advance one answer; turn an exception into an error of this request alone."""
    try:
        return next(steps)
    except ForewordError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - a failed request must not end the others
        return {"error": named(error)}


def writer(out: Path | None) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that appends JSON lines to a file or stdout, and
    flushes each.
    """

    def write(record: Mapping[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=False) + "\n"
        if out is None:
            sys.stdout.write(line)
            sys.stdout.flush()
            return
        with out.open("a", encoding="utf-8", errors="replace") as file:
            file.write(line)

    return write
