"""Answers of a form, cut off at every length: tool calls and JSON."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from foreword_lab.certify.clock import Clock
from foreword_lab.certify.remote.ask import choice_of, request, sampling
from foreword_lab.certify.remote.client import Server
from foreword_lab.certify.report import Check

CITY = (
    '{"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, '
    '"days": {"enum": [1, 2, 3]}}, "required": ["city", "days"], '
    '"additionalProperties": false}'
)
"""A closed schema, so that a small model ends its answer too."""
LONGEST = 128
"""Tokens. Longest whole answer: the schema is closed, so answers are shorter."""
STRIDE = 4
"""Tokens. With `--quick`, every so many lengths are tried."""
FORM_SEEDS = 4
"""Whole answers that are sampled."""
SHOWN = 5
"""Faults that a report lists."""
NAME = "plan_journey"
QUESTION = "Plan a journey to Paris for two days."
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Plan a journey.",
        "parameters": json.loads(CITY),
    },
}
CALL = {
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": NAME}},
}
"""Parameters of a call that the model must make."""
SCHEMA = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "journey", "strict": True, "schema": json.loads(CITY)},
    }
}
FIELDS = {"city": ("Paris", "Rome"), "days": (1, 2, 3)}
"""Values that the schema allows."""

Fault = Callable[[Mapping[str, Any], bool], str | None]
"""(choice, whether it must be cut off) -> what is wrong with it."""


def call_check(server: Server, clock: Clock) -> Check:
    """Return whether a call is whole, or cut off and marked as cut off."""
    return _check("tool calls cut at every length", server, CALL, call_fault, clock)


def schema_check(server: Server, clock: Clock) -> Check:
    """Return the same of an answer that follows a schema."""
    return _check("JSON cut at every length", server, SCHEMA, schema_fault, clock)


def _check(
    name: str, server: Server, form: dict[str, Any], fault: Fault, clock: Clock
) -> Check:
    faults, count = [], 0

    def ask(tokens: int, seed: int, temperature: float, *, cut: bool) -> Any:
        parameters = sampling(seed, temperature, tokens)
        answer = server.post(*request("chat", QUESTION, **parameters, **form))
        problem = fault(choice_of(answer), cut)
        if problem is not None:
            shown = {"answer": choice_of(answer), **parameters}
            faults.append({"fault": problem, **shown})
        return answer

    whole = ask(LONGEST, 0, 0.0, cut=False)
    length = _length(whole)
    if faults:
        what = f"a whole answer has another form: {faults[0]['fault']}"
        return Check(name, "cannot say", what, faults[0])
    if choice_of(whole).get("finish_reason") == "length" or not length:
        return Check(name, "cannot say", f"no answer ended within {LONGEST} tokens")
    for seed in range(1, FORM_SEEDS + 1):
        ask(LONGEST, seed, 1.0, cut=False)
    for tokens in range(1, length, STRIDE if clock.is_quick else 1):
        clock.tell(f"{name}: {tokens} of {length} tokens")
        ask(tokens, 0, 0.0, cut=True)
        count += 1
    evidence: dict[str, Any] = {
        "whole": 1 + FORM_SEEDS,
        "cut": count,
        "faults": len(faults),
    }
    if faults:
        evidence["first faults"] = faults[:SHOWN]
        total = 1 + FORM_SEEDS + count
        what = f"{len(faults)} of {total} answers are wrong: {faults[0]['fault']}"
        return Check(name, "differs", what, evidence)
    what = (
        f"{1 + FORM_SEEDS} whole answers and {count} cut ones say truly which they are"
    )
    return Check(name, "consistent", what, evidence)


def call_fault(choice: Mapping[str, Any], cut: bool) -> str | None:
    """Return what is wrong with a forced call; None if nothing is."""
    message = choice.get("message") or {}
    reason = choice.get("finish_reason")
    calls = message.get("tool_calls") or []
    if _braces(message.get("content")):
        return "a call came back as content"
    if reason == "length":
        return None
    if cut:
        return f"a cut call ends with finish_reason {reason!r}"
    if not calls:
        return f"no call was made, and finish_reason is {reason!r}"
    if calls[0]["function"]["name"] != NAME:
        return "another tool was called"
    return _unfit(calls[0]["function"].get("arguments"))


def schema_fault(choice: Mapping[str, Any], cut: bool) -> str | None:
    """Return what is wrong with an answer in JSON; None if nothing is."""
    message = choice.get("message") or {}
    reason = choice.get("finish_reason")
    if message.get("tool_calls"):
        return "JSON came back as a call"
    if reason == "length":
        return None
    if cut:
        return f"a cut answer ends with finish_reason {reason!r}"
    return _unfit(message.get("content"))


def _unfit(text: Any) -> str | None:
    """Return why a text does not follow the schema; None if it does."""
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        return f"what is marked as whole is not JSON: {text!r}"
    is_object = isinstance(value, dict) and set(value) == set(FIELDS)
    if is_object and all(value[name] in FIELDS[name] for name in FIELDS):
        return None
    return f"the schema is not followed: {text!r}"


def _braces(content: Any) -> bool:
    """Return whether a content holds the beginning of the arguments of a call."""
    return isinstance(content, str) and '{"' in content.replace(" ", "")


def _length(answer: Any) -> int:
    """Return the tokens of an answer; 0 where it does not say."""
    usage = answer.get("usage") or {}
    return int(usage.get("completion_tokens") or 0)
