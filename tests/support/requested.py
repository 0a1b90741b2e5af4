"""Files of requests for the tests of batches."""

import json
from pathlib import Path
from typing import Any

from asking import closed, tool
from serving import Running

ENDED = ("completed", "failed", "expired", "cancelled")
CHAT = "/v1/chat/completions"
CITY = closed(city={"enum": ["Paris", "Rome"]}, days={"enum": [1, 2, 3]})
TOOLS = [
    tool("get_weather", description="Weather", parameters=CITY),
    tool("get_time", parameters=CITY),
]


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


def uploaded(server: Running, *requests: Any, key: str = "") -> dict[str, Any]:
    """Return the description of a file that was sent."""
    lines = [one if isinstance(one, str) else json.dumps(one) for one in requests]
    response = server.http.post(
        "/v1/files",
        data={"purpose": "batch"},
        files={"file": ("mine.jsonl", "\n".join(lines).encode())},
        headers={"x-api-key": key},
    )
    assert response.status_code == 200, response.text
    return response.json()


def begun(server: Running, file: dict[str, Any], url: str = CHAT) -> dict[str, Any]:
    return server.post("/v1/batches", input_file_id=file["id"], endpoint=url)


def got(server: Running, path: str) -> Any:
    response = server.http.get(path)
    assert response.status_code == 200, response.text
    return response.json()


def ended(server: Running, batch: dict[str, Any], least: int | None = None) -> Any:
    """Return a batch once it has ended, or has `least` answers."""
    while batch["status"] not in ENDED:
        batch = got(server, f"/v1/batches/{batch['id']}")
        if least is not None and batch["request_counts"]["completed"] >= least:
            break
    return batch


def content(server: Running, id: str) -> str:
    response = server.http.get(f"/v1/files/{id}/content")
    assert response.status_code == 200
    return response.text
