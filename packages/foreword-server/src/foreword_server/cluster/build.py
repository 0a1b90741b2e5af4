"""Builder of the application for Ray Serve's own files: `serve deploy`, `serve run` and
KubeRay's RayService. It takes options of `foreword serve` by their names.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import wraps
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
from foreword_server.commands.serve import Serving, of_llm, serve
from foreword_server.telemetry.asked import check_traces

SERVES = {
    "host": "'http_options' of the file",
    "port": "'http_options' of the file",
    "ray": "'serve deploy --address'",
    "detach": "'serve deploy'",
    "replica-timeout": "'serve status'",
    "files": "'foreword batch --ray'",
}
"""Option -> what has its part where Ray Serve deploys."""
OF_LLM = ("slots", "chunk", "read_ms", "cache_tokens", "draft")
USAGE: Any = typer.BadParameter.__base__
"""What typer raises for options, from its own click or from click's."""
Kind = TypeVar("Kind")


def app(args: dict[str, Any]) -> Application:
    """Return the application. Raises InvalidRequest for options that are wrong."""
    values = parsed(args)
    serving = replace(_built(Serving, values), ray=AUTO)
    on_ray = serving.on_ray()
    assert on_ray is not None
    model = early.either(values["model"], values["target"], "model")
    options = of_llm(
        {name: values[name] for name in OF_LLM},
        values["lora"],
        _built(ModelOptions, values),
        _built(DraftingOptions, values),
        _built(SamplingValues, values),
    )
    scale, settings = on_ray.scale(options), serving.settings()
    check_traces()
    if not ray.is_initialized():  # `serve run` builds first
        ray.init(namespace="serve", log_to_driver=True)
    # without keys, an address that others reach is refused
    bound = http_options() or HTTPOptions()
    settings = replace(settings, host=bound.host or "", port=bound.port)
    start = on_ray.start(model, settings, options)
    return application(start, scale, nodes(), {})


def parsed(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all options, by the names of parameters.

    Raises InvalidRequest for options that there are not, or of another kind.
    """
    shell = typer.Typer(add_completion=False)

    @wraps(serve)
    def values(**given: Any) -> dict[str, Any]:
        return given

    shell.command()(values)
    words = [word for name, value in args.items() for word in _words(name, value)]
    try:
        return typer.main.get_command(shell).main(words, standalone_mode=False)
    except USAGE as error:
        raise InvalidRequest(
            f"cannot build the server: {error} Give options of 'foreword serve'"
        ) from error


def _words(name: str, value: Any) -> list[str]:
    """Return an option as words of a command line."""
    option = name.replace("_", "-")
    if option in SERVES:
        raise InvalidRequest(
            f"cannot build the server with {name!r}: {SERVES[option]} has its part. "
            "Leave it out"
        )
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{option}"]
    each = value if isinstance(value, list) else [value]
    return [word for one in each for word in (f"--{option}", str(one))]


def _built(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """Return a bundle of options."""
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: values[name] for name in names})
