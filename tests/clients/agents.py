"""How each coding agent gets the server's address, and what it is made to call."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clients.proxy import Call

NOTE, PICTURE = "note.txt", "picture.png"
MODEL = "foreword"
CONTEXT = 65_536


@dataclass(frozen=True)
class Place:
    """Where an agent runs."""

    url: str
    """Address of the server, without a path."""
    home: Path
    work: Path
    asked: str = "Read note.txt."


@dataclass(frozen=True)
class Agent:
    """A program, what it is given, and what the model calls in it."""

    program: str
    settings: Callable[[Place], tuple[Sequence[str], dict[str, str]]]
    """Writes the settings; returns the arguments and the environment."""
    calls: Callable[[Path], Sequence[Call]]
    """The folder of the work -> calls that read the note, then the picture."""
    sees: bool = True


def claude_code(place: Place) -> tuple[Sequence[str], dict[str, str]]:
    """Tell Claude Code by its environment."""
    environment = {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "CLAUDE_CONFIG_DIR": str(place.home / "claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        # nothing is asked, also of an administrator
        "IS_SANDBOX": "1",
    }
    unasked = "--dangerously-skip-permissions"
    return ("-p", place.asked, "--model", MODEL, unasked), environment


def codex(place: Place) -> tuple[Sequence[str], dict[str, str]]:
    """Tell Codex by its file; its sandbox needs what a container may not have."""
    provider = {
        "name": json.dumps("Foreword"),
        "base_url": json.dumps(f"{place.url}/v1"),
        "wire_api": json.dumps("responses"),
        "request_max_retries": "0",
        "stream_max_retries": "0",
    }
    lines = [
        f'model = "{MODEL}"',
        'model_provider = "ours"',
        f"model_context_window = {CONTEXT}",
        "check_for_update_on_startup = false",
        "[analytics]",
        "enabled = false",
        "[model_providers.ours]",
        *(f"{name} = {value}" for name, value in provider.items()),
    ]
    folder = place.home / "codex"
    folder.mkdir()
    (folder / "config.toml").write_text("\n".join(lines))
    unasked = "--dangerously-bypass-approvals-and-sandbox"
    arguments = ("exec", "--skip-git-repo-check", unasked, place.asked)
    return arguments, {"CODEX_HOME": str(folder)}


def opencode(place: Place) -> tuple[Sequence[str], dict[str, str]]:
    """Tell opencode by a file of the folder."""
    model = {
        "name": MODEL,
        "attachment": True,
        "modalities": {"input": ["text", "image"], "output": ["text"]},
        "limit": {"context": CONTEXT, "output": 4096},
    }
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Foreword",
        "options": {"baseURL": f"{place.url}/v1", "apiKey": "none"},
        "models": {MODEL: model},
    }
    settings = {"model": f"ours/{MODEL}", "provider": {"ours": provider}}
    (place.work / "opencode.json").write_text(json.dumps(settings))
    off = ("MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE")
    return ("run", place.asked), {f"OPENCODE_DISABLE_{name}": "1" for name in off}


def continue_cli(place: Place) -> tuple[Sequence[str], dict[str, str]]:
    """Tell Continue by a file that its arguments name."""
    model = {
        "name": MODEL,
        "provider": "openai",
        "model": MODEL,
        "apiBase": f"{place.url}/v1",
        "apiKey": "none",
        "roles": ["chat"],
        "capabilities": ["tool_use"],
        "defaultCompletionOptions": {"contextLength": CONTEXT, "maxTokens": 4096},
    }
    settings = {"name": "Ours", "version": "1.0.0", "schema": "v1", "models": [model]}
    file = place.home / "config.yaml"
    # JSON is YAML
    file.write_text(json.dumps(settings))
    environment = {
        "CONTINUE_GLOBAL_DIR": str(place.home / "continue"),
        "CONTINUE_CLI_ENABLE_TELEMETRY": "0",
        "CONTINUE_METRICS_ENABLED": "0",
        # it looks for updates unless it has just updated
        "CONTINUE_CLI_AUTO_UPDATED": "1",
    }
    return ("-p", place.asked, "--config", str(file), "--auto"), environment


def reads(tool: str, argument: str, *names: str) -> Callable[[Path], Sequence[Call]]:
    """Return the calls of one tool for files by their whole path."""
    return lambda work: [Call(tool, {argument: str(work / name)}) for name in names]


AGENTS = {
    "Claude Code": Agent(
        "claude", claude_code, reads("Read", "file_path", NOTE, PICTURE)
    ),
    "Codex": Agent(
        "codex",
        codex,
        lambda work: [
            Call("exec_command", {"cmd": f"cat {NOTE}"}),
            Call("view_image", {"path": str(work / PICTURE)}),
        ],
    ),
    "opencode": Agent("opencode", opencode, reads("read", "filePath", NOTE, PICTURE)),
    "Continue": Agent("cn", continue_cli, reads("Read", "filepath", NOTE), sees=False),
}
