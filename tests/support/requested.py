"""Files of requests for the tests of batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CHAT = "/v1/chat/completions"


def chat(number: int, **more: Any) -> dict[str, Any]:
    """Return a request with a seed of its own."""
    question = {"role": "user", "content": f"What is {number}?"}
    body = {"messages": [question], "max_tokens": 12, "seed": number} | more
    return {"custom_id": f"c{number}", "method": "POST", "url": CHAT, "body": body}


def written(path: Path, *requests: Any) -> Path:
    """Write requests, or other lines, to a file."""
    lines = [one if isinstance(one, str) else json.dumps(one) for one in requests]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def answers(text: str) -> dict[str, dict[str, Any]]:
    """Return the responses by custom_id; no id may come twice."""
    records = [json.loads(line) for line in text.splitlines()]
    found = {record["custom_id"]: record["response"] for record in records}
    assert len(found) == len(records)
    return found


def texts(text: str) -> dict[str, str]:
    """Return the answers of chats by custom_id."""
    return {
        name: response["body"]["choices"][0]["message"]["content"]
        for name, response in answers(text).items()
    }
