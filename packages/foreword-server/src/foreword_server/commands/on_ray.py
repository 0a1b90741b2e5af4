"""Options of `foreword serve` for a Ray cluster."""

import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli.common import early, options, render, runtime
from foreword.errors import InvalidRequest
from foreword_server.cluster.address import LOCAL
from foreword_server.commands.routing import Routing
from foreword_server.settings import Settings

if TYPE_CHECKING:
    from foreword_server.cluster.placing import Scale
    from foreword_server.replicas.process import Start

PANEL = "Ray"
PATHS = ("model", "draft", "adapters", "offload_folder")
"""Options that may name a file or folder."""
COUNT = re.compile(r"([1-9]\d*)(?:-([1-9]\d*))?")

Address = Annotated[
    str | None,
    options.option(
        PANEL, "--ray", "Serve on a Ray cluster: an address, auto, or local.", "ADDRESS"
    ),
]
Cpus = Annotated[
    float | None,
    options.option(
        PANEL, "--replica-cpus", "CPUs of a replica on Ray. Default: a node's.", least=0
    ),
]
Gpus = Annotated[
    float | None,
    options.option(
        PANEL, "--replica-gpus", "GPUs of a replica on Ray. Default: one.", least=0
    ),
]
Detach = Annotated[
    bool,
    typer.Option(
        "--detach", help="Leave the server on the Ray cluster.", rich_help_panel=PANEL
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnRay:
    """A server on a cluster of Ray."""

    address: str
    replicas: str | None
    cpus: float | None
    gpus: float | None
    detach: bool
    seconds: float
    """Most until a replica is ready."""
    routing: Routing
    """Which models are loaded by name."""

    def serve(
        self, model: str | None, settings: Settings, options: Mapping[str, Any]
    ) -> None:
        """Serve until SIGINT or SIGTERM, or leave the server on the cluster.

        Raises InvalidRequest for options that a cluster does not have.
        """
        early.extra("ray", "ray", "ray.serve")
        scale = self.scale(options)
        local = self.address == LOCAL
        self._check(settings, local=local)
        from foreword_server.cluster.placing import address
        from foreword_server.cluster.serve import connect, deploy, end

        with render.loading():
            session = connect(self.address)
            try:
                options = absolutes({"model": model, **options})
                start = self.start(options.pop("model"), settings, options)
                about = deploy(start, scale, seconds=self.seconds)
            except BaseException:
                if local:
                    end(cluster=True, session=session)
                raise
        runtime.note(
            f"{about['name']} at {address(settings)}, on Ray, drafting with "
            f"{about['method']}"
        )
        if not self.detach:
            _wait_for_signal()
            end(cluster=local, session=session)

    def start(
        self, model: str | None, settings: Settings, options: dict[str, Any]
    ) -> "Start":
        """Return what replicas serve."""
        from foreword_server.replicas.process import Start

        catalog = self.routing.catalog(model, settings, options)
        return Start(model, options, settings, catalog)

    def scale(self, options: Mapping[str, Any]) -> "Scale":
        """Return how many replicas there are, and what each takes. Raises
        InvalidRequest for no number.
        """
        from foreword_server.cluster.placing import Scale

        match = COUNT.fullmatch(self.replicas or "1")
        least = int(match[1]) if match else 0
        most = int(match[2] or least) if match else 0
        if not 0 < least <= most:
            raise InvalidRequest(
                f"cannot use '--replicas' {self.replicas!r} with '--ray': it is "
                "neither a number nor a range. Give one of them, as 4 or 1-8"
            )
        share: Any = {"cpus": self.cpus, "gpus": self.gpus}
        ranks = options["tensor_parallel"]
        return Scale(least=least, most=most, ranks=ranks, **share)

    def _check(self, settings: Settings, *, local: bool) -> None:
        if settings.files is not None:
            raise InvalidRequest(
                "cannot use '--files' with '--ray': a node may end, and the files with "
                "it. Use 'foreword batch --ray'"
            )
        if self.detach and local:
            raise InvalidRequest(
                "cannot use '--detach' with '--ray local': that cluster ends with this "
                "command. Start one with 'ray start --head', and give '--ray auto'"
            )
        if settings.port == 0:
            raise InvalidRequest(
                "cannot use '--port' 0 with '--ray': its proxies share one port. Name "
                "it"
            )
        if local:
            from foreword_server.run import bound

            bound(settings).close()


def absolutes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options whose paths do not depend on the folder of this command."""
    from foreword_server.replicas.catalog import beside

    here = Path.cwd() / "command"
    paths = {name: options[name] for name in PATHS if options.get(name)}
    return {**options, **{name: beside(here, path) for name, path in paths.items()}}


def _wait_for_signal() -> None:
    """Return at SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        while True:
            signal.pause()
