"""Requests to a server of the bundled model, by clients of OpenAI and Anthropic."""

import json
from typing import Any

MODEL = "foreword-family"


def chat(client: Any, messages: Any, **fields: Any) -> Any:
    return client.chat.completions.create(
        **{"model": MODEL, "messages": messages, **fields}
    )


def complete(client: Any, prompt: Any, **fields: Any) -> Any:
    return client.completions.create(model=MODEL, prompt=prompt, **fields)


def respond(client: Any, asked: Any, **fields: Any) -> Any:
    return client.responses.create(**{"model": MODEL, "input": asked, **fields})


def converse(client: Any, messages: Any, **fields: Any) -> Any:
    return client.messages.create(model=MODEL, messages=messages, **fields)


def speculation(answer: Any) -> dict[str, Any]:
    """Return the counts of draft tokens that come with an answer."""
    return answer.model_extra["metrics"]["speculative_decoding"]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def tool_result(id: str, content: Any) -> dict[str, Any]:
    """Return the turn with what a tool gave."""
    return {"role": "tool", "tool_call_id": id, "content": content}


def part(text: str, **more: Any) -> dict[str, Any]:
    """Return a part of a turn that is text."""
    return {"type": "text", "text": text, **more}


def called(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    """Return a call of a chat."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": id, "type": "function", "function": function}


def tool(name: str, **more: Any) -> dict[str, Any]:
    """Return a tool of a chat."""
    return {"type": "function", "function": {"name": name, **more}}


def closed(**properties: Any) -> dict[str, Any]:
    """Return a schema of these properties alone: the small model must end."""
    required = list(properties)
    more = {"required": required, "additionalProperties": False}
    return {"type": "object", "properties": properties, **more}
