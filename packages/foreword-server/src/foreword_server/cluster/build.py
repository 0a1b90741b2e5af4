"""Builder of the application for Ray Serve's own files: `serve deploy`, `serve run` and
KubeRay's RayService. It takes options of `foreword serve` by their names.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import wraps
from itertools import chain
from typing import Any, TypeVar

import ray
import typer
from ray.serve import Application
from ray.serve.config import HTTPOptions

from foreword.cli.common import early
from foreword.cli.common.bundles import SamplingValues
from foreword.errors import InvalidRequest
from foreword.options import DraftingOptions, ModelOptions
from foreword_server.cluster.address import AUTO
from foreword_server.cluster.application import application
from foreword_server.cluster.placing import nodes
from foreword_server.cluster.serve import http_options
from foreword_server.commands import adapters
from foreword_server.commands.serve import Serving, of_llm, serve
from foreword_server.telemetry.asked import check_traces

OF_RAY = ("detach", "files", "host", "port", "ray", "replica-timeout")
"""Options for which Ray Serve's file and commands have others."""
OF_LLM = ("slots", "chunk", "read_ms", "cache_tokens", "draft")
USAGE: Any = typer.BadParameter.__base__
"""What typer raises for options, from its own click or from click's."""
BUNDLES: Any = (SamplingValues, ModelOptions, DraftingOptions)
Kind = TypeVar("Kind")


def app(args: dict[str, Any]) -> Application:
    """Return the application. Raises InvalidRequest for options that are wrong."""
    values = parsed(args)
    serving = replace(_built(Serving, values), ray=AUTO)
    on_ray = serving.on_ray()
    assert on_ray is not None
    target = values["target"]
    model = early.either(values["model"], target, "model")
    lora = values["lora"] or []
    loras = adapters.folders(lora, more=False)
    options = {name: values[name] for name in OF_LLM}
    options = of_llm(
        options | {"adapters": loras},
        *(_built(kind, values) for kind in BUNDLES),
    )
    scale, settings = on_ray.scale(options), serving.settings()
    start = on_ray.start(model, settings, options)
    check_traces()
    if not ray.is_initialized():  # `serve run` builds first
        ray.init(namespace="serve", log_to_driver=True)
    # without keys, an address that others reach is refused
    http = http_options() or HTTPOptions()
    settings = replace(settings, host=http.host or "", port=http.port)
    return application(replace(start, settings=settings), scale, nodes(), {})


def parsed(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all options, by the names of parameters.

    Raises InvalidRequest for options that there are not, or of another kind.
    """
    shell = typer.Typer(add_completion=False)

    @wraps(serve)
    def values(**options: Any) -> dict[str, Any]:
        return options

    shell.command()(values)
    words = [*chain(*map(_words, args, args.values()))]
    command = typer.main.get_command(shell)
    try:
        return command.main(words, standalone_mode=False)
    except USAGE as error:
        raise InvalidRequest(
            f"cannot read args: {error} See 'foreword serve'"
        ) from error


def _words(name: str, value: Any) -> list[str]:
    """Return an option as words of a command line."""
    option = name.replace("_", "-")
    if option in OF_RAY:
        raise InvalidRequest(
            f"cannot use {name!r}: Ray Serve decides that. "
            "Leave it out, or see its 'http_options'"
        )
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{option}"]
    values = value if isinstance(value, list) else [value]
    return [word for item in values for word in (f"--{option}", str(item))]


def _built(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """Return a bundle of options."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: values[name] for name in names})
