"""The certificate of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

from foreword.bench.machine import machine, versions
from foreword.certify.clock import Clock
from foreword.certify.remote.ask import PATHS
from foreword.certify.remote.client import Broken, Server, Unsupported
from foreword.certify.remote.forms import call_check, schema_check
from foreword.certify.remote.same_text import (
    beside_check,
    drafting_check,
    prefix_check,
    seed_check,
)
from foreword.certify.remote.temperature import TEMPERATURES, temperature_check
from foreword.certify.report import Certificate, Check
from foreword.errors import words

SEEDS, FEW_SEEDS = 8, 3
"""Seeds of the checks that compare two texts."""
SAMPLING = 0.6
"""Share of the time for the sampled distributions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of the certificate of a server."""

    url: str
    key: str | None = None
    model: str | None = None
    minutes: float = 3.0
    quick: bool = False
    seed: int = 0


def certify_server(
    options: ServerOptions, note: Callable[[str], None] = lambda _: None
) -> Certificate:
    """Check a server.

    Raises InvalidRequest or ModelError if it cannot be reached.
    """
    server = Server.at(options.url, options.key, options.model)
    clock = Clock.of(options.minutes, note, quick=options.quick)
    checks = []
    for name, check in _checks(server, options, clock):
        clock.tell(name)
        checks.append(_outcome(name, check))
    return Certificate(
        {"server": server.base, "model": server.model},
        datetime.now(UTC).isoformat(timespec="seconds"),
        options.seed,
        round(clock.spent, 1),
        machine(),
        versions(),
        tuple(checks),
    )


def _outcome(name: str, check: Callable[[], Check]) -> Check:
    """Return the outcome of a check that may be refused."""
    try:
        return check()
    except Unsupported as error:
        return Check(name, "not supported", words(error))
    except (Broken, LookupError, TypeError, AttributeError) as error:
        return Check(name, "failed", words(error))


def _checks(
    server: Server, options: ServerOptions, clock: Clock
) -> Iterator[tuple[str, Callable[[], Check]]]:
    first = options.seed
    seeds = range(first + 1, first + 1 + (FEW_SEEDS if options.quick else SEEDS))
    for one in PATHS:
        yield f"seeds: {one}", partial(seed_check, server, one, seeds)
        for heat in (0.0, 1.0):
            named = f"beside other requests: {one}, temperature {heat:g}"
            yield named, partial(beside_check, server, one, heat)
        yield f"prefixes: {one}", partial(prefix_check, server, one, first)
        yield f"drafting: {one}", partial(drafting_check, server, one, seeds)
    yield "tool calls cut", partial(call_check, server, clock)
    yield "JSON cut", partial(schema_check, server, clock)
    heats = (1.0,) if options.quick else TEMPERATURES
    for index, heat in enumerate(heats):
        named = f"distribution at temperature {heat:g}"
        until = 1 - SAMPLING * (len(heats) - 1 - index) / len(heats)
        more = dict(seed=first, clock=clock, until=until)
        yield named, partial(_sampled, server, heat, **more)


def _sampled(server: Server, temperature: float, **more: Any) -> Check:
    """Return the check of the sampled distribution, on chat if the server has it."""
    try:
        return temperature_check(server, "chat", temperature, **more)
    except Unsupported:
        return temperature_check(server, "completions", temperature, **more)
