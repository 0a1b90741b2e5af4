"""Tools of Anthropic and of OpenAI's responses that the client runs, as functions: a
model here learns from their schema what the models of their makers know from training.
"""

import json
from collections.abc import Iterator, Mapping
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
COMMAND = "Run one program on the user's machine: its name, then each argument."
SHELL = "Run commands in a shell on the user's machine, one after the other."
PATCH = (
    "Create, update or delete one file. diff of create_file: each line of the file "
    "after a '+'. diff of update_file: parts that begin with a line '@@'; then lines "
    "after ' ' to find, after '-' to remove, after '+' to add. diff of delete_file: "
    "empty."
)
STRING = {"type": "string"}
STRINGS = {"type": "array", "items": STRING}
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
    "bash_": (BASH, _parameters([], command=STRING, restart={"type": "boolean"})),
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
                "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]
            },
            **FILES,
            old_path=STRING,
            new_path=STRING,
        ),
    ),
}
"""Beginning of a tool's type, before its date -> description and parameters."""


LOCAL: dict[str, tuple[str, dict[str, Any]]] = {
    "local_shell": (
        COMMAND,
        _parameters(
            ["command"],
            command=STRINGS,
            env={"type": "object", "additionalProperties": STRING},
            timeout_ms=INTEGER,
            working_directory=STRING,
            user=STRING,
        ),
    ),
    "shell": (
        SHELL,
        _parameters(
            ["commands"],
            commands=STRINGS,
            timeout_ms=INTEGER,
            max_output_length=INTEGER,
        ),
    ),
    "apply_patch": (
        PATCH,
        _parameters(
            ["type", "path", "diff"],
            type={"enum": ["create_file", "update_file", "delete_file"]},
            path=STRING,
            diff=STRING,
        ),
    ),
}
"""Type of a tool of responses -> description and parameters."""
ITEMS = {
    "local_shell_call": ("local_shell", "action", "lsh_"),
    "shell_call": ("shell", "action", "sh_"),
    "apply_patch_call": ("apply_patch", "operation", "apc_"),
}
"""Kind of item that calls one -> the tool's type, the member of the item that says
what to do, the beginning of its id.
"""


def member(value: Any, name: str) -> Any:
    """Return a member of an object; None where a client sent something else."""
    return value.get(name) if isinstance(value, Mapping) else None


def client_tool(tool: dict[str, Any]) -> dict[str, Any] | None:
    """Return the function of a tool that the client runs; None for Anthropic's."""
    kind = str(tool.get("type", ""))
    for beginning, (description, parameters) in KINDS.items():
        if kind.startswith(beginning):
            return {
                "name": tool.get("name"),
                "description": description,
                "parameters": parameters,
            }
    return None


def is_local(tool: Mapping[str, Any]) -> bool:
    """Return whether a tool of responses is one that the client runs; a shell may be
    in a container of the host instead.
    """
    kind = tool.get("type")
    if not isinstance(kind, str) or kind not in LOCAL:
        return False
    environment = tool.get("environment") or {"type": "local"}
    return isinstance(environment, Mapping) and environment.get("type") == "local"


def local_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the function of a tool of responses that the client runs.

    It is strict: the item of its call has no place for other arguments.
    """
    kind = str(tool["type"])
    description, parameters = LOCAL[kind]
    return {
        "name": kind,
        "description": "\n".join([description, *_skills(tool)]),
        "parameters": parameters,
        "strict": True,
    }


def _skills(tool: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each skill that a shell's machine has."""
    skills = (tool.get("environment") or {}).get("skills")
    for skill in skills if isinstance(skills, list) else ():
        if not isinstance(skill, Mapping):
            continue
        name, path = skill.get("name"), skill.get("path")
        about = skill.get("description")
        yield f"Skill {name}: {about} Read {path}/SKILL.md before its use."


def arguments_of(kind: str, item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the function that an item of one of `ITEMS` calls."""
    tool, member, _ = ITEMS[kind]
    _, parameters = LOCAL[tool]
    about = item.get(member)
    fields = about if isinstance(about, Mapping) else {}
    names = [name for name in parameters["properties"] if fields.get(name)]
    arguments = {name: fields[name] for name in names}
    if kind == "apply_patch_call":
        arguments.setdefault("diff", "")  # a file that is deleted has none
    return arguments


def members_of(kind: str, arguments: str) -> dict[str, Any]:
    """Return the members of an item of one of `ITEMS` for the arguments of a call.

    Of a call that was cut off nothing is kept: half a command must not run.
    """
    try:
        value = json.loads(arguments)
    except ValueError:
        value = {}
    fields = value if isinstance(value, dict) else {}
    if kind == "apply_patch_call":
        return {"operation": _operation(fields)}
    if kind == "shell_call":
        action = {
            "commands": fields.get("commands", []),
            "timeout_ms": fields.get("timeout_ms"),
            "max_output_length": fields.get("max_output_length"),
        }
        return {"action": action, "environment": {"type": "local"}}
    action = {
        "type": "exec",
        "command": fields.get("command", []),
        "env": fields.get("env", {}),
        "timeout_ms": fields.get("timeout_ms"),
        "user": fields.get("user"),
        "working_directory": fields.get("working_directory"),
    }
    return {"action": action}


def _operation(fields: Mapping[str, Any]) -> dict[str, Any]:
    kind = fields.get("type", "update_file")
    operation = {"type": kind, "path": fields.get("path", "")}
    if kind == "delete_file":
        return operation
    return {**operation, "diff": fields.get("diff", "")}
