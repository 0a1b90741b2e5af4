"""`foreword generate --batch`: a file of prompts in, JSON lines out, many prompts at a time; goes on where it ended.

Knows lines and files; knows nothing about options or how an answer is made.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as List
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from foreword.errors import ForewordError, InvalidRequest, named
from foreword.params import PARAMETER_NAMES, SamplingParams

if TYPE_CHECKING:
    from foreword.llm import LLM
    from foreword.types import Delta

ASKED, TEXTS = ("prompt", "messages", "id"), ".txt"
WISHES = tuple(name for name in PARAMETER_NAMES if name != "processors")
"""Sampling parameters that a line may give for itself."""
AHEAD = 2
"""Prompts in flight for each slot, so that no slot is empty while others are looked after."""
Prompt = str | list[dict[str, str]]
"""A text or the messages of a conversation."""


@dataclass(frozen=True, slots=True)
class Job:
    """One answer that is wanted, or why there is none."""

    about: dict[str, Any]
    """What its line in the output begins with: the number of its line, its id, which of several answers it is."""
    asked: str
    """Fingerprint of all that the answer depends on."""
    prompt: Prompt = ""
    params: SamplingParams = field(default_factory=SamplingParams)
    sized: bool = False
    """The line says how long the answer may be."""
    error: str = ""

    @property
    def key(self) -> tuple[int, int]:
        """(line, answer)."""
        return self.about["index"], self.about.get("answer", 0)


def jobs(
    text: str, name: str, params: SamplingParams, seeds: Callable[[int | None], List[int]], by: object
) -> list[Job]:
    """What the lines of a file ask for, empty ones left out. `by` is what else the answers depend on.

    A line that cannot be served becomes a job with an error. Raises InvalidRequest where there is none at all.
    """
    found: list[Job] = []
    lines = [line for line in text.split("\n") if line.strip()]
    for index, line in enumerate(lines):
        about: dict[str, Any] = {"index": index}
        fixed = repr((line, by, replace(params, processors=())))
        asked = blake2b(fixed.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
        try:
            record = {"prompt": line.removesuffix("\r")} if name.endswith(TEXTS) else _record(line)
            about |= {"id": record["id"]} if "id" in record else {}
            wishes = {key: _plain(key, value) for key, value in record.items() if key in WISHES}
            wanted = replace(params, **wishes)
        except InvalidRequest as error:
            found.append(Job(about, asked, error=str(error)))
            continue
        own = seeds(wanted.seed)
        found += [
            Job(
                about | ({"answer": number} if len(own) > 1 else {}),
                asked,
                record["prompt"] if "prompt" in record else record["messages"],
                replace(wanted, seed=seed),
                "max_tokens" in wishes,
            )
            for number, seed in enumerate(own)
        ]
    if not found:
        raise InvalidRequest(
            f"there are no prompts in {name}; give a JSON object a line, or lines of text in a .txt file"
        )
    return found


def _record(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"the line is not JSON: {error}") from error
    if not isinstance(record, dict) or ("prompt" in record) == ("messages" in record):
        raise InvalidRequest('a line is {"prompt": "…"} or {"messages": […]}, with parameters and an id if you like')
    for name in record:
        if name not in (*ASKED, *WISHES):
            near = get_close_matches(name, (*ASKED, *WISHES), 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidRequest(f"there is no parameter {name!r}{hint}")
    if not isinstance(record.get("prompt", ""), str) or not isinstance(record.get("messages", []), list):
        raise InvalidRequest("a prompt must be a string, and messages a list")
    if not record.get("prompt", "x").strip():
        raise InvalidRequest("the prompt is empty; give some text to answer")
    return record


def _plain(name: str, value: Any) -> Any:
    """JSON has no whole numbers as keys."""
    if name == "logit_bias" and isinstance(value, dict):
        return {int(key) if key.isdecimal() else key: bias for key, bias in value.items()}
    return value


def done(out: Path, wanted: List[Job]) -> set[tuple[int, int]]:
    """The jobs that a file has answers to. Lines with errors, and a last one that was cut off, are taken out of it.

    Raises InvalidRequest where it holds something else, or answers to other prompts.
    """
    held = out.read_text(encoding="utf-8", errors="replace") if out.exists() else ""
    asked = {job.key: job.asked for job in wanted}
    kept: list[str] = []
    keys: set[tuple[int, int]] = set()
    for line in held.split("\n")[:-1]:
        try:
            said = json.loads(line)
            key, print_, failed = (said["index"], said.get("answer", 0)), said["asked"], "error" in said
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InvalidRequest(f"{out} holds something else than answers; give another file") from None
        if asked.get(key) != print_:
            raise InvalidRequest(f"{out} holds answers to other prompts, or drawn otherwise; give another file")
        if not failed:
            kept.append(line + "\n")
            keys.add(key)
    if (rest := "".join(kept)) != held:
        partial = out.with_name(f".{out.name}.partial")
        partial.write_text(rest, encoding="utf-8")
        partial.replace(out)
    return keys


@dataclass(slots=True)
class Tally:
    """What became of the jobs."""

    answers: int = 0
    failed: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs jobs on a model. `read` makes token ids of a prompt; `fitted` gives parameters a length that fits."""

    llm: LLM
    read: Callable[[Prompt], list[int]]
    fitted: Callable[[SamplingParams, list[int]], SamplingParams]

    def run(self, wanted: List[Job], write: Callable[[Mapping[str, Any]], None], slots: int) -> Tally:
        """Answer all of them, so many at a time, and write each when it is complete."""
        tally, waiting, active = Tally(), deque(wanted), deque[tuple[Job, Generator[dict[str, Any] | None]]]()
        try:
            while waiting or active:
                while waiting and len(active) < AHEAD * slots:
                    active.append(((job := waiting.popleft()), self._answer(job)))
                job, steps = active.popleft()
                said = _next(steps)
                if said is None:
                    active.append((job, steps))
                    continue
                write({**job.about, "asked": job.asked, **said})
                tally.answers += 1
                tally.failed += "error" in said
                tally.tokens += len(said.get("tokens", ()))
        finally:
            for _, steps in active:
                steps.close()
        return tally

    def _answer(self, job: Job) -> Generator[dict[str, Any] | None]:
        """Nothing while it goes on, in the end what is written of it."""
        from foreword.cli.answer import Answer, stop_reason

        if job.error:
            raise InvalidRequest(job.error)
        ids = self.read(job.prompt)
        params = job.params if job.sized else self.fitted(job.params, ids)
        answer = Answer(params.seed or 0)
        deltas = cast("Generator[Delta]", self.llm.stream(ids, params))
        try:
            for delta in deltas:
                answer.add(delta, self.llm.engine.clock)
                yield None
        finally:
            deltas.close()
        said = {
            "text": answer.text,
            "finish_reason": answer.finish_reason,
            "stop_reason": stop_reason(self.llm, params, answer.tokens, answer.finish_reason),
            "seed": answer.seed,
            "prompt_tokens": len(ids),
            "tokens": answer.tokens,
            "rounds": answer.figures.rounds,
            "drafted": answer.figures.drafted,
            "accepted": answer.figures.accepted,
        }
        yield said | ({"logprobs": [asdict(one) for one in answer.logprobs]} if answer.logprobs else {})


def _next(steps: Generator[dict[str, Any] | None]) -> dict[str, Any] | None:
    """What comes next of an answer; an error of one request ends that one alone."""
    try:
        return next(steps)
    except ForewordError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - whatever a request runs into, the others go on
        return {"error": named(error)}


def writer(out: Path | None) -> Callable[[Mapping[str, Any]], None]:
    """Writes JSON lines to a file, after those that are there, or to stdout; each is there before the next begins."""

    def write(said: Mapping[str, Any]) -> None:
        line = json.dumps(said, ensure_ascii=False) + "\n"
        if out is None:
            sys.stdout.write(line)
            sys.stdout.flush()
            return
        with out.open("a", encoding="utf-8", errors="replace") as file:
            file.write(line)

    return write
