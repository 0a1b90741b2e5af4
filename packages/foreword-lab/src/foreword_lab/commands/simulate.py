"""`foreword simulate`: how replicas of a server would behave under a load."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from foreword.cli.common import early, options, render
from foreword.cli.common.bundles import bundled
from foreword.cli.common.options import option
from foreword.errors import InvalidRequest
from foreword.files import check_writable

if TYPE_CHECKING:
    from foreword_lab.simulate.costs import ReplicaCosts
    from foreword_lab.simulate.load import Load

COSTS = "Costs"
LOAD = "Load"


CostFile = Annotated[
    Path | None, option(COSTS, "--costs", "File of measured costs.", "FILE")
]
FromServer = Annotated[
    str | None,
    option(COSTS, "--from-server", "Address of a running server to measure.", "BASE"),
]
Key = Annotated[str | None, option(COSTS, "--key", "API key of the server.", "KEY")]
Save = Annotated[
    Path | None, option(COSTS, "--save", "File to write the costs to.", "FILE")
]
Measured = Annotated[
    int,
    option(
        COSTS, "--measured", "Replicas that ran during the measurement.", "N", least=1
    ),
]
Trace = Annotated[
    Path | None, option(LOAD, "--trace", "JSON lines, each a request.", "FILE")
]
Clients = Annotated[
    int | None,
    option(LOAD, "--clients", "Clients that wait for each answer.", "N", least=1),
]
Rate = Annotated[
    float | None,
    option(LOAD, "--rate", "Requests a second, at random times (Poisson).", "R"),
]
Requests = Annotated[
    int | None,
    option(
        LOAD,
        "--requests",
        "Requests in all. Default: 4 a client, at least 256.",
        "N",
        least=1,
    ),
]
Prompts = Annotated[
    str, option(LOAD, "--prompt-tokens", "Tokens of a prompt, or their range.", "N|N-N")
]
Answers = Annotated[
    str,
    option(LOAD, "--answer-tokens", "Tokens of an answer, or their range.", "N|N-N"),
]
Seed = Annotated[
    int,
    option(
        LOAD, "--seed", "Seed of arrivals, lengths and accepted tokens.", "N", least=0
    ),
]
Replicas = Annotated[
    str, option(None, "--replicas", "Numbers of replicas, a row each.", "N,N,…")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostOptions:
    """Options of the costs: a file, or a server."""

    costs: CostFile = None
    from_server: FromServer = None
    key: Key = None
    save: Save = None
    measured: Measured = 1

    def __post_init__(self) -> None:
        if (self.costs is None) == (self.from_server is None):
            raise InvalidRequest(
                "cannot simulate: give either '--costs' or '--from-server', which say "
                "what a round takes"
            )
        if self.from_server is None and self.key:
            raise InvalidRequest(
                "cannot use '--key': it is the key of a server. Give '--from-server'"
            )
        if self.from_server is not None:
            early.address(self.from_server)
            early.extra("serve", "prometheus_client")
        if self.save is not None:
            check_writable(self.save)

    def read(self) -> "ReplicaCosts":
        """Return the costs, and save them if asked to."""
        from foreword_lab.simulate.costs import ReplicaCosts

        if self.costs is not None:
            costs = ReplicaCosts.read(self.costs)
        else:
            from foreword_lab.simulate.server import costs_of

            costs = costs_of(self.from_server or "", self.key)
        if self.save is not None:
            costs.save(self.save)
        return costs


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Options of the load: a trace, clients, or a rate."""

    trace: Trace = None
    clients: Clients = None
    rate: Rate = None
    requests: Requests = None
    prompt_tokens: Prompts = "64"
    answer_tokens: Answers = "96"
    seed: Seed = 0

    def __post_init__(self) -> None:
        arrivals = [self.trace, self.clients, self.rate]
        if sum(one is not None for one in arrivals) != 1:
            raise InvalidRequest(
                "cannot simulate: give one of '--trace', '--clients' and '--rate', "
                "which say when requests arrive"
            )
        if self.trace is not None and self.requests is not None:
            raise InvalidRequest(
                "cannot use '--requests' with '--trace': a trace has a request a "
                "line. Leave it out"
            )
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise InvalidRequest(
                f"cannot use '--rate' {self.rate}: it is not a number of requests a "
                "second. Give one above 0"
            )

    def read(self) -> "Load":
        """Return the requests."""
        from foreword_lab.simulate import load

        if self.trace is not None:
            return load.trace(self.trace, self.seed)
        lengths = (
            load.Lengths.read("'--prompt-tokens'", self.prompt_tokens),
            load.Lengths.read("'--answer-tokens'", self.answer_tokens),
            self.requests,
            self.seed,
        )
        if self.clients is not None:
            return load.waiting_clients(self.clients, *lengths)
        return load.poisson_arrivals(self.rate or 0.0, *lengths)

    def shown(self) -> dict[str, Any]:
        """Return the load in words."""
        if self.trace is not None:
            return {"trace": str(self.trace)}
        return {
            "clients": self.clients,
            "rate": self.rate,
            "prompt_tokens": self.prompt_tokens,
            "answer_tokens": self.answer_tokens,
        }


@bundled
def simulate(
    *,
    replicas: Replicas = "1",
    sent: LoadOptions,
    priced: CostOptions,
    as_json: options.AsJson = False,
) -> None:
    """Predict speed, waiting times and refusals of several replicas under a load.

    Simulates every round of every replica, from costs that one replica has shown. No
    model is loaded. Measure the costs while all replicas of a machine are loaded: they
    share its cores and memory.
    """
    counts = early.numbers("'--replicas'", replicas)
    from foreword_lab.simulate.run import simulate as run

    load = sent.read()
    costs = priced.read()
    with render.bar(quiet=as_json) as shown:
        task = shown.add_task("requests", total=None)
        report = run(
            costs,
            load,
            counts,
            priced.measured,
            shown=sent.shown(),
            progress=lambda done, total: shown.update(
                task, completed=done, total=total
            ),
        )
    if as_json:
        sys.stdout.write(json.dumps(report.as_json()) + "\n")
        return
    render.stdout().print(report.table())
