"""Anthropic's tools that the client runs, as functions: a model here learns from their
schema what Anthropic's models know from training.
"""

from __future__ import annotations

from typing import Any

BASH = "Run a command in a persistent bash session; `restart` starts it anew."
EDITOR = (
    "View, create and edit files. view: a file or folder, or its lines in view_range. "
    "create: write file_text. str_replace: put new_str in place of old_str, which must "
    "occur once. insert: put insert_text after insert_line."
)
MEMORY = (
    "Keep notes in files below /memories, across conversations: view, create, "
    "str_replace, insert, delete a path, rename old_path to new_path."
)
STRING = {"type": "string"}
INTEGER = {"type": "integer"}
LINES = {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 2}
FILES = {
    "path": STRING,
    "file_text": STRING,
    "old_str": STRING,
    "new_str": STRING,
    "insert_line": INTEGER,
    "insert_text": STRING,
    "view_range": LINES,
}
"""Parameters of commands on files."""


def _parameters(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "bash_": (
        BASH,
        _parameters([], command=STRING, restart={"type": "boolean"}),
    ),
    "text_editor_": (
        EDITOR,
        _parameters(
            ["command", "path"],
            command={"enum": ["view", "create", "str_replace", "insert"]},
            **FILES,
        ),
    ),
    "memory_": (
        MEMORY,
        _parameters(
            ["command"],
            command={
                "enum": [
                    "view",
                    "create",
                    "str_replace",
                    "insert",
                    "delete",
                    "rename",
                ]
            },
            **FILES,
            old_path=STRING,
            new_path=STRING,
        ),
    ),
}
"""Beginning of a tool's type, before its date -> description and parameters."""


def client_tool(tool: dict[str, Any]) -> dict[str, Any] | None:
    """Return the function of a tool that the client runs; None for one that only
    Anthropic runs.
    """
    kind = str(tool.get("type", ""))
    for beginning, (description, parameters) in KINDS.items():
        if kind.startswith(beginning):
            return {
                "name": tool.get("name"),
                "description": description,
                "parameters": parameters,
            }
    return None
