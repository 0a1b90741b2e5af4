"""Answers of `foreword batch` to the requests of `frozen.http`, one at a time."""

import folders
import requested
from frozen import commands, http


def record() -> dict[str, object]:
    """Return exit code, status and body by the name of the request."""
    folder = folders.kept()
    lines = [
        {"custom_id": name, "method": "POST", "url": path, "body": body}
        for name, (path, body) in http.REQUESTS.items()
    ]
    questions = requested.written(folder / "questions.jsonl", *lines)
    answers = folder / "answers.jsonl"
    words = ("batch", str(questions), str(answers), "--slots", "1", "--nodes", "4")
    code = commands.process(*words).returncode
    responses = requested.answers(answers.read_text(encoding="utf-8"))
    return {"code": code} | {
        name: {"status": response["status_code"], "body": http.steady(response["body"])}
        for name, response in responses.items()
    }
