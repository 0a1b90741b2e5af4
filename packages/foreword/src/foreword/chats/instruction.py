"""Tools for models whose template knows none: in the system message, called in JSON."""

import json
from collections.abc import Sequence
from itertools import pairwise

from foreword.chats.messages import Turn, system_first
from foreword.chats.tools import Function

ABOUT = """You can call these functions, given as JSON with the schema of their parameters:
{functions}
To call functions, answer with nothing but this JSON object, which holds each call:
{{"tool_calls": [{{"name": "<function>", "arguments": {{"<parameter>": <value>}}}}]}}
The results are in the message after it. If no function is needed, answer in plain text."""
"""The system message; the server's parser "generic" reads the answers."""


def instruction(functions: Sequence[Function]) -> str:
    """Return the system text that tells a model its tools and the format of calls."""
    lines: list[str] = []
    for function in functions:
        about = {
            "name": function.name,
            "description": function.description,
            "parameters": function.parameters,
        }
        lines.append(json.dumps(about, ensure_ascii=False))
    return ABOUT.format(functions="\n".join(lines))


def instructed(
    turns: Sequence[Turn],
    functions: Sequence[Function],
) -> list[Turn]:
    """Return a conversation in plain messages: the tools in the system message, calls
    and results as text.
    """
    plain: list[Turn] = []
    for last, turn in pairwise([{"role": ""}, *turns]):
        if turn["role"] != "tool":
            if turn.get("tool_calls"):
                turn = {"role": turn["role"], "content": _called(turn)}
            plain.append(turn)
            continue
        content = _result(turn)
        # one message for results in a row: some templates want roles to alternate
        if last["role"] == "tool":
            content = f"{plain.pop()['content']}\n{content}"
        plain.append({"role": "user", "content": content})
    if not functions:
        return plain
    return system_first(plain, [instruction(functions)])


def _called(turn: Turn) -> str:
    calls = [call["function"] for call in turn["tool_calls"]]
    shown = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
    text = json.dumps({"tool_calls": shown}, ensure_ascii=False)
    if turn["content"]:
        return f"{turn['content']}\n{text}"
    return text


def _result(turn: Turn) -> str:
    about: dict[str, object] = {}
    if turn.get("name"):
        about["result of"] = turn["name"]
    about["result"] = turn["content"]
    return json.dumps(about, ensure_ascii=False)
