"""`foreword serve`: an HTTP server for OpenAI's and Anthropic's clients."""

import socket
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli.common import early, options, render, runtime
from foreword.cli.common.bundles import SamplingValues, bundled, permitted
from foreword.options import DraftingOptions, ModelOptions, keywords
from foreword_server.commands import adapters, kept_files, on_ray, routing
from foreword_server.commands.keys import KEYS, api_keys
from foreword_server.commands.routing import number
from foreword_server.settings import MEBIBYTE, Settings, hashed
from foreword_server.telemetry.asked import check_traces

if TYPE_CHECKING:
    from foreword_server.replicas.serve import Begin

SERVER = "Server"


def _option(*names: str, help: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Option(
        *names, help=help, metavar=metavar, rich_help_panel=SERVER, **more
    )


Host = Annotated[
    str,
    _option("--host", help="Address to bind; beyond loopback an API key is needed."),
]
Port = Annotated[
    int, _option("--port", help="Port; 0 takes a free one.", min=0, max=65_535)
]
Name = Annotated[
    str | None,
    _option("--served-model-name", help="Model name of clients. Default: its folder."),
]
KeyFile = Annotated[
    Path | None,
    _option(
        "--api-key-file",
        help=f"File of API keys, one a line. Also {KEYS}.",
        exists=True,
    ),
]
Slots = Annotated[int, _option("--slots", help="Answers generated at a time.", min=1)]
Chunk = Annotated[
    int, _option("--chunk", help="Prompt tokens read in one round.", min=1)
]
ReadMs = Annotated[
    int | None,
    _option(
        "--read-ms",
        help="Milliseconds that reading prompts adds to a round while others write. "
        "Default: its own length.",
        min=1,
    ),
]
CacheTokens = Annotated[
    int | None,
    _option(
        "--cache-tokens",
        help="Tokens of keys and values held. Default: by free memory.",
        min=64,
    ),
]
Queue = Annotated[
    int,
    _option("--queue", help="Answers that run or wait; more get status 429.", min=1),
]
Context = Annotated[
    int | None,
    _option(
        "--max-model-len", help="Tokens of prompt and answer. Default: all.", min=2
    ),
]
MaxBody = Annotated[
    float, _option("--max-body", help="Largest request body, in MiB.", min=0.001)
]
PrefixFolder = Annotated[
    Path | None,
    _option(
        "--prefix-folder",
        help="Folder for keys and values of prompts, read at the next start.",
        file_okay=False,
    ),
]
MaxAudio = Annotated[
    float,
    _option("--max-audio", help="Longest sound to transcribe, in seconds.", min=1),
]
PerKey = Annotated[
    int | None,
    _option("--max-per-key", help="Answers of one API key at a time.", min=1),
]
Rate = Annotated[
    float | None, _option("--rate", help="Requests a minute of one API key.", min=0.1)
]
ToolFormat = Annotated[
    str | None,
    _option("--tool-format", help="Format of tool calls. Default: by chat template."),
]
ReasoningTags = Annotated[
    str | None,
    _option(
        "--reasoning-tags",
        help="Tags of reasoning, xml or mistral. Default: by chat template.",
    ),
]
Sanitize = Annotated[
    bool, _option("--sanitize", help="Control tokens of users and tools as plain text.")
]
AnyModel = Annotated[
    bool, _option("--any-model", help="Answers to requests for any model.")
]
Origin = Annotated[
    list[str] | None,
    _option("--cors-origin", help="Web origin that may send requests. Repeatable."),
]
AllowedHost = Annotated[
    list[str] | None,
    _option(
        "--allowed-host",
        help="Host name accepted on loopback, as of a tunnel. Repeatable.",
    ),
]
LeaveAfter = Annotated[
    float, _option("--leave-after", help="Seconds from SIGTERM to --drain.", min=0)
]
Drain = Annotated[
    float, _option("--drain", help="Seconds for running answers to finish.", min=1)
]
PublicMetrics = Annotated[
    bool, _option("--public-metrics", help="Answer /metrics without an API key.")
]
Resume = Annotated[
    bool,
    _option("--resume", help="Go on with answers of other servers, for balancers."),
]
LogJson = Annotated[bool, _option("--log-json", help="Log lines as JSON.")]
LogPrompts = Annotated[
    bool, _option("--log-prompts", help="Prompts and answers in the log.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Options of the server itself, checked on construction."""

    replicas: routing.Replicas = None
    replica_timeout: routing.Timeout = 900.0
    ray: on_ray.Address = None
    replica_cpus: on_ray.Cpus = None
    replica_gpus: on_ray.Gpus = None
    detach: on_ray.Detach = False
    models: routing.ModelsPath = None
    models_memory: routing.Memory = None
    unload_after: routing.Unused = None
    host: Host = "127.0.0.1"
    port: Port = 8000
    served_model_name: Name = None
    api_key_file: KeyFile = None
    queue: Queue = 256
    max_model_len: Context = None
    max_body: MaxBody = 16.0
    files: kept_files.Files = None
    prefix_folder: PrefixFolder = None
    lora_folder: adapters.LoraFolder = None
    max_file: kept_files.MaxFile = 200.0
    max_stored: kept_files.MaxStored = None
    max_batches: kept_files.MaxBatches = 100
    max_audio: MaxAudio = 1800.0
    max_per_key: PerKey = None
    rate: Rate = None
    tool_format: ToolFormat = None
    reasoning_tags: ReasoningTags = None
    any_model: AnyModel = False
    sanitize: Sanitize = False
    cors_origin: Origin = None
    allowed_host: AllowedHost = None
    leave_after: LeaveAfter = 0.0
    drain: Drain = 30.0
    public_metrics: PublicMetrics = False
    resume: Resume = False
    log_json: LogJson = False
    log_prompts: LogPrompts = False

    def on_ray(self) -> on_ray.OnRay | None:
        """Return how a cluster serves; None where none does.

        Raises InvalidRequest for options that would be ignored.
        """
        if self.models or self.ray or self.replicas:
            routing.refuse(self, "with a router, which does that itself", "resume")
            several = "with several processes, each with adapters of its own"
            routing.refuse(self, several, "lora_folder")
        if self.models is None:
            routing.refuse(self, "without '--models'", "models_memory", "unload_after")
        if self.ray is None:
            names = ("replica_cpus", "replica_gpus", "detach")
            routing.refuse(self, "without '--ray'", *names)
            return None
        return on_ray.OnRay(
            address=self.ray,
            replicas=self.replicas,
            cpus=self.replica_cpus,
            gpus=self.replica_gpus,
            detach=self.detach,
            seconds=number("--replica-timeout", self.replica_timeout),
            routing=replace(self.routing(), replicas=None),
        )

    def routing(self) -> routing.Routing:
        """Return which processes serve."""
        return routing.Routing(
            replicas=self.replicas,
            timeout=number("--replica-timeout", self.replica_timeout),
            models=self.models,
            memory=self.models_memory,
            unused=self.unload_after and number("--unload-after", self.unload_after),
        )

    @property
    def _stored(self) -> int | None:
        """Bytes that the files of one key may take; None: the default."""
        if self.max_stored is None:
            return None
        return int(number("--max-stored", self.max_stored) * MEBIBYTE)

    def settings(self) -> Settings:
        """Return the settings. Raises InvalidRequest for a contradiction."""
        return Settings(
            host=self.host,
            port=self.port,
            name=self.served_model_name,
            keys=hashed(api_keys(self.api_key_file)),
            queue=self.queue,
            body=int(number("--max-body", self.max_body) * MEBIBYTE),
            files=self.files,
            prefix_folder=self.prefix_folder,
            adapters=self.lora_folder,
            file=int(number("--max-file", self.max_file) * MEBIBYTE),
            stored=self._stored,
            batches=self.max_batches,
            sound=number("--max-audio", self.max_audio),
            context=self.max_model_len,
            concurrent=self.max_per_key,
            rate=None if self.rate is None else number("--rate", self.rate),
            tool_format=self.tool_format,
            reasoning=self.reasoning_tags,
            any_model=self.any_model,
            sanitize=self.sanitize,
            origins=tuple(self.cors_origin or ()),
            hosts=tuple(name.lower() for name in self.allowed_host or ()),
            leave=number("--leave-after", self.leave_after),
            drain=number("--drain", self.drain),
            public_metrics=self.public_metrics,
            resume=self.resume,
            log_json=self.log_json,
            log_prompts=self.log_prompts,
        )


@bundled
def serve(
    model: options.ModelArgument = None,
    *,
    target: options.ModelName = None,
    slots: Slots = 32,
    chunk: Chunk = 512,
    read_ms: ReadMs = None,
    cache_tokens: CacheTokens = None,
    serving: Serving,
    draft: options.DraftName = None,
    lora: adapters.Lora = None,
    loading: ModelOptions,
    drafting: DraftingOptions,
    sampling: SamplingValues,
    quiet: options.Quiet = False,
) -> None:
    """Serve a model to OpenAI's and Anthropic's clients.

    Requests share rounds, each with its own drafting method if it names one; the text
    of a request depends on its seed alone. Without a key the server answers this
    machine only. Ctrl-C or SIGTERM lets running answers finish.
    """
    model = early.either(model, target, "--model")
    check_traces()
    scheduling = dict(slots=slots, chunk=chunk, read_ms=read_ms)
    more = serving.lora_folder is not None
    scheduling |= {"cache_tokens": cache_tokens, "draft": permitted(model, draft)}
    scheduling |= {"adapters": adapters.folders(lora or [], more=more)}
    options_ = of_llm(scheduling, sampling, loading, drafting)
    settings = serving.settings()
    if (cluster := serving.on_ray()) is not None:
        cluster.serve(model, settings, options_)
        return
    begin = serving.routing().begin(model, settings, options_)
    if begin is None:
        _serve(model, settings, options_, quiet=quiet)
    else:
        _serve_routed(begin, settings, quiet=quiet)


def _serve_routed(begin: "Begin", settings: Settings, *, quiet: bool) -> None:
    """Serve with a router and processes behind it."""
    from foreword_server.batches.store import Store
    from foreword_server.replicas.serve import serve
    from foreword_server.run import bound

    with closing(bound(settings)) as listener:
        serve(
            begin,
            settings,
            listener,
            store=Store.of(settings),
            loading=render.loading(),
            started=lambda about: _note_address(about, listener),
            quiet=quiet,
        )


def _note_address(name: str, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{port}"
    runtime.note(f"{name} at {address}/v1; the page: {address}/")


def _serve(
    model: str | None, settings: Settings, keywords: dict[str, Any], *, quiet: bool
) -> None:
    from foreword_server.batches.store import Store
    from foreword_server.run import bound, serve

    # A port or a folder in use is refused before the model loads.
    with closing(bound(settings)) as listener:
        store = Store.of(settings)
        with render.loading():
            from foreword_server.output import named_format, named_reasoning

            for check, name in (
                (named_format, settings.tool_format),
                (named_reasoning, settings.reasoning),
            ):
                if name is not None:
                    check(name)
            from foreword.api.llm import LLM
            from foreword.api.summary import summary
            from foreword_server.service import Service

            llm = LLM(model, **keywords)
            service = Service(llm, settings, bundled=model is None, store=store)

        def ready() -> None:
            runtime.note(summary(llm, bundled=model is None))
            _note_address(service.name, listener)

        serve(service, listener, ready, quiet=quiet)


def of_llm(
    values: Mapping[str, Any], sampling: SamplingValues, *bundles: Any
) -> dict[str, Any]:
    """Return keyword arguments of LLM."""
    more = {"generation_config": sampling.defaults()}
    for bundle in bundles:
        more |= keywords(bundle)
    return {**values, **more}
