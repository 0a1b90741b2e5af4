"""`foreword serve`: an HTTP server for OpenAI's and Anthropic's clients."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli.common import early, options, render, runtime
from foreword.cli.common.bundles import BackendLoading, Drafting, bundled
from foreword.errors import InvalidRequest

if TYPE_CHECKING:
    from foreword.server.settings import Settings

SERVER = "Server"
KEYS = "FOREWORD_API_KEYS"
"""Environment variable with API keys, separated by commas."""


def _option(*names: str, help: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=SERVER, **more)


Host = Annotated[str, _option("--host", help="Address to bind; beyond loopback an API key is needed.")]
Port = Annotated[int, _option("--port", help="Port; 0 takes a free one.", min=0, max=65_535)]
Name = Annotated[str | None, _option("--served-model-name", help="Model name of clients. Default: its folder.")]
KeyFile = Annotated[
    Path | None, _option("--api-key-file", help=f"File of API keys, one a line. Also {KEYS}.", exists=True)
]
Slots = Annotated[int, _option("--slots", help="Answers generated at a time.", min=1)]
Chunk = Annotated[int, _option("--chunk", help="Prompt tokens read in one round.", min=1)]
CacheTokens = Annotated[
    int | None,
    _option("--cache-tokens", help="Most tokens of keys and values. Default: a quarter of free memory.", min=64),
]
Queue = Annotated[int, _option("--queue", help="Answers that run or wait; more get status 429.", min=1)]
Context = Annotated[int | None, _option("--max-model-len", help="Tokens of prompt and answer. Default: all.", min=2)]
MaxBody = Annotated[float, _option("--max-body", help="Largest request body, in MiB.", min=0.001)]
PerKey = Annotated[int | None, _option("--max-per-key", help="Answers of one API key at a time.", min=1)]
Rate = Annotated[float | None, _option("--rate", help="Requests a minute of one API key.", min=0.1)]
ToolFormat = Annotated[str | None, _option("--tool-format", help="Format of tool calls. Default: by chat template.")]
ReasoningTags = Annotated[
    str | None, _option("--reasoning-tags", help="Tags of reasoning, xml or mistral. Default: by chat template.")
]
Origin = Annotated[list[str] | None, _option("--cors-origin", help="Web origin that may send requests. Repeatable.")]
AllowedHost = Annotated[
    list[str] | None, _option("--allowed-host", help="Host name accepted on loopback, as of a tunnel. Repeatable.")
]
Drain = Annotated[float, _option("--drain", help="Seconds for running answers to finish after SIGTERM.", min=1)]
LogJson = Annotated[bool, _option("--log-json", help="Log lines as JSON.")]
LogPrompts = Annotated[bool, _option("--log-prompts", help="Prompts and answers in the log.")]


@bundled
def serve(
    model: options.ModelArgument = None,
    *,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    served_model_name: Name = None,
    api_key_file: KeyFile = None,
    slots: Slots = 32,
    chunk: Chunk = 512,
    cache_tokens: CacheTokens = None,
    queue: Queue = 256,
    max_model_len: Context = None,
    max_body: MaxBody = 16.0,
    max_per_key: PerKey = None,
    rate: Rate = None,
    tool_format: ToolFormat = None,
    reasoning_tags: ReasoningTags = None,
    cors_origin: Origin = None,
    allowed_host: AllowedHost = None,
    drain: Drain = 30.0,
    log_json: LogJson = False,
    log_prompts: LogPrompts = False,
    loading: BackendLoading,
    drafting: Drafting,
    quiet: options.Quiet = False,
) -> None:
    """Serve a model to OpenAI's and Anthropic's clients.

    Requests share rounds, each with its own drafting method if it names one; the text of a request depends on its
    seed alone. Without a key the server answers this machine only. Ctrl-C or SIGTERM lets running answers finish.
    """
    early.extra("server", "fastapi", "uvicorn", "prometheus_client")
    from foreword.server.settings import MEBIBYTE, Settings, hashed

    settings = Settings(
        host=host,
        port=port,
        name=served_model_name,
        keys=hashed(_keys(api_key_file)),
        queue=queue,
        body=int(max_body * MEBIBYTE),
        context=max_model_len,
        concurrent=max_per_key,
        rate=rate,
        tool_format=tool_format,
        reasoning=reasoning_tags,
        origins=tuple(cors_origin or ()),
        hosts=tuple(name.lower() for name in allowed_host or ()),
        drain=drain,
        log_json=log_json,
        log_prompts=log_prompts,
    )
    _serve(
        model,
        settings,
        dict(slots=slots, chunk=chunk, cache_tokens=cache_tokens, **loading.keywords, **drafting.keywords),
        quiet=quiet,
    )


def _serve(model: str | None, settings: Settings, keywords: dict[str, Any], *, quiet: bool) -> None:
    from foreword.server.run import bound, serve

    listener = bound(settings)  # before the model loads: a port in use should not cost seconds
    with render.loading():
        from foreword.server.output import named_format, named_reasoning

        for check, name in ((named_format, settings.tool_format), (named_reasoning, settings.reasoning)):
            if name is not None:
                check(name)
        from foreword.llm import LLM
        from foreword.server.service import Service

        llm = LLM(model, **keywords)
        service = Service(llm, settings, bundled=model is None)
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def ready() -> None:
        runtime.note(f"{service.name} at {address}/v1, drafting with {llm.method}; see /metrics and /openapi.json")

    serve(service, listener, ready, quiet=quiet)


def _keys(file: Path | None) -> list[str]:
    """Return the API keys of the file and of the environment. Raises InvalidRequest for an empty file."""
    keys = [key.strip() for key in os.environ.get(KEYS, "").split(",") if key.strip()]
    if file is not None:
        lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise InvalidRequest(f"cannot read keys from {file}: it is empty. Write one key a line")
        keys += found
    return keys
