"""Options of `foreword serve` for several processes."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli.common import options, runtime
from foreword.errors import InvalidRequest
from foreword_server.settings import Settings

if TYPE_CHECKING:
    from foreword_server.replicas.catalog import Catalog
    from foreword_server.replicas.serve import Begin

PANEL = "Several processes"
GIB = 2**30
UNUSED = 600.0
"""Seconds. A model that no request used for so long is unloaded by default."""

Replicas = Annotated[
    str | None,
    options.option(
        PANEL,
        "--replicas",
        "Processes: a number, or auto (GPUs, NUMA nodes); MIN-MAX on Ray.",
        "N|auto",
    ),
]
Timeout = Annotated[
    float,
    options.option(
        PANEL, "--replica-timeout", "Seconds until a process must be ready.", least=1
    ),
]
ModelsPath = Annotated[
    Path | None,
    typer.Option(
        "--models",
        help="Folder or TOML file of models, loaded by name.",
        exists=True,
        rich_help_panel=PANEL,
    ),
]
Memory = Annotated[
    float | None,
    options.option(
        PANEL,
        "--models-memory",
        "GiB for models loaded by name. Default: 80%.",
        least=0,
    ),
]
Unused = Annotated[
    float | None,
    options.option(
        PANEL,
        "--unload-after",
        "Seconds until an unused model is unloaded; 0: never. Default: 600.",
        least=0,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Which processes serve."""

    replicas: str | None
    timeout: float
    models: Path | None
    memory: float | None
    unused: float | None

    def begin(
        self, model: str | None, settings: Settings, options: Mapping[str, Any]
    ) -> "Begin | None":
        """Return what starts the processes; None where this one serves.

        Raises InvalidRequest for options that contradict each other, or a catalog that
        cannot be read.
        """
        if (catalog := self.catalog(model, settings, options)) is not None:
            from foreword_server.replicas.serve import many_models

            return many_models(catalog, settings)
        count = self._count
        if count == 1:
            return None
        from foreword_server.replicas.places import places
        from foreword_server.replicas.process import Start
        from foreword_server.replicas.serve import one_model

        layout = places(count, gpus=options.get("device") != "cpu")
        if len(layout) == 1:
            return None
        for number, cores in enumerate(layout):
            runtime.note(f"replica {number}: {cores}")
        start = Start(model, dict(options), settings)
        return one_model(start, layout, self.timeout)

    def catalog(
        self, model: str | None, settings: Settings, options: Mapping[str, Any]
    ) -> "Catalog | None":
        """Return the models by name; None for one model.

        Raises InvalidRequest for options that contradict them, or a catalog that
        cannot be read.
        """
        if self.models is None:
            return None
        taken = {
            "MODEL": model,
            "'--lora'": options.get("adapters") or None,
            "'--replicas'": self.replicas,
            "'--served-model-name'": settings.name,
        }
        for name, value in taken.items():
            if value is not None:
                raise InvalidRequest(
                    f"cannot use '--models' with {name}: each model has its own. "
                    "Write it into the file of models"
                )
        from foreword_server.replicas.catalog import Catalog, read_catalog

        return Catalog(
            entries=read_catalog(self.models.absolute(), options),
            memory=None if self.memory is None else int(self.memory * GIB),
            unused=UNUSED if self.unused is None else self.unused,
            seconds=self.timeout,
        )

    @property
    def _count(self) -> int | None:
        """The number of replicas; None for "auto"."""
        value = self.replicas
        if value is None:
            return 1
        if value == "auto":
            return None
        if not value.isdecimal() or int(value) < 1:
            raise InvalidRequest(
                f"cannot use '--replicas' {value!r}: it is neither a number from 1 on "
                "nor auto. Give one of them"
            )
        return int(value)


def refuse(options: object, reason: str, *names: str) -> None:
    """Raise InvalidRequest for the first of some options that is given."""
    for name in names:
        if (value := getattr(options, name)) is not None and value is not False:
            option = name.replace("_", "-")
            raise InvalidRequest(f"cannot use '--{option}' {reason}. Leave it out")


def number(option: str, value: float) -> float:
    """Return a number. Raises InvalidRequest for infinity and NaN."""
    if not isfinite(value):
        raise InvalidRequest(
            f"cannot use {option} {value}: it must be a number. Give another"
        )
    return value
