"""Tools for models whose chat template knows none: described in the system message,
called in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence as List
from itertools import pairwise

from foreword.chats.messages import Turn, system_first
from foreword.chats.tools import Function

ABOUT = """You can call these functions, given as JSON with the schema of their parameters:
{functions}
To call functions, answer with nothing but this JSON object, which holds each call:
{{"tool_calls": [{{"name": "<function>", "arguments": {{"<parameter>": <value>}}}}]}}
The results are in the message after it. If no function is needed, answer in plain text."""
"""What the parser "generic" of the server reads."""


def instruction(functions: List[Function]) -> str:
    """Return the system text that tells a model its tools and the format of calls."""
    shown = (
        {"name": one.name, "description": one.description, "parameters": one.parameters}
        for one in functions
    )
    return ABOUT.format(
        functions="\n".join(json.dumps(one, ensure_ascii=False) for one in shown)
    )


def instructed(turns: List[Turn], functions: List[Function]) -> list[Turn]:
    """Return a conversation in plain messages: the tools in the system message, calls
    and results as text.
    """
    plain: list[Turn] = []
    for last, turn in pairwise([{"role": ""}, *turns]):
        if turn["role"] != "tool":
            plain.append(
                {"role": turn["role"], "content": _called(turn)}
                if turn.get("tool_calls")
                else turn
            )
        # one message for results in a row: some templates want roles to alternate
        elif last["role"] == "tool":
            plain[-1] = {
                "role": "user",
                "content": f"{plain[-1]['content']}\n{_result(turn)}",
            }
        else:
            plain.append({"role": "user", "content": _result(turn)})
    return system_first(plain, [instruction(functions)]) if functions else plain


def _called(turn: Turn) -> str:
    calls = [call["function"] for call in turn["tool_calls"]]
    shown = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
    text = json.dumps({"tool_calls": shown}, ensure_ascii=False)
    return f"{turn['content']}\n{text}" if turn["content"] else text


def _result(turn: Turn) -> str:
    about: Mapping[str, object] = (
        {"result of": turn["name"]} if turn.get("name") else {}
    )
    return json.dumps({**about, "result": turn["content"]}, ensure_ascii=False)
