"""Commands that serve: over HTTP, and a file of requests."""

from foreword.cli.common.command import GENERATE, Command
from foreword_server.commands.batch import batch
from foreword_server.commands.serve import serve

COMMANDS = (
    Command(
        GENERATE,
        "serve",
        serve,
        (
            "foreword serve",
            (
                "foreword serve path/or/hub-id --draft path/or/hub-id --port 8080 "
                "--api-key-file keys.txt"
            ),
            "foreword serve model.Q4_K_M.gguf",
        ),
    ),
    Command(
        GENERATE,
        "batch",
        batch,
        (
            "foreword batch requests.jsonl answers.jsonl",
            (
                "foreword batch requests.jsonl answers.jsonl -m path/or/hub-id "
                "-d path/or/hub-id --json"
            ),
        ),
    ),
)
