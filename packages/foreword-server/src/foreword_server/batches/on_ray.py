"""Files of requests on Ray Data: replicas on the nodes of a cluster answer, and this
process alone writes.

Only `foreword batch --ray` imports it.
"""

import asyncio
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.exceptions import RayError
from ray.util.annotations import RayDeprecationWarning
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from foreword.errors import ForewordError, InvalidRequest, words
from foreword_server.app import build_generation
from foreword_server.batches.inside import Inside
from foreword_server.batches.lines import Line, RequestFile
from foreword_server.batches.results import Response
from foreword_server.batches.run import AHEAD, run
from foreword_server.cluster.address import AUTO, FAULTS, LOCAL, check_reachable, refuse
from foreword_server.cluster.placing import has_room, nodes, rooms
from foreword_server.service import Service

FEW_LINES = 8
"""Lines of a task of a file that is not large: its answers arrive together."""
MOST_TASKS = 2**13
"""Tasks of a file, a millisecond of Ray each; beyond, tasks have more lines."""
BLOCK = 2**20
"""Bytes of a task's lines at most. Ray Data expects answers of this size too, and
starts as many tasks as fit.
"""
READERS = 2
"""Tasks at a time that read the file, on the node of this process."""
TRIES = 3
"""Passes over the file in a row that may end without an answer."""
SHORT: dict[str, Any] = {"prefix": "ray-", "dir": "/tmp", "ignore_cleanup_errors": True}
"""The folder of a Ray of our own: paths of sockets have at most 107 bytes."""
STDERR = 2
"""Descriptor, to which the C++ of Ray writes."""
AGAIN = "Run the same command again to go on: answers are kept"
Load = Callable[[], Service]
"""Loads the model that every replica has."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many replicas answer, and what each occupies."""

    count: int
    cpus: int
    gpus: float
    width: int
    """Requests in flight at each."""


@contextmanager
def connected(address: str) -> Iterator[None]:
    """Start Ray here (`LOCAL`) or join a cluster. Raises InvalidRequest."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    settings: dict[str, Any] = {"log_to_driver": False}
    with TemporaryDirectory(**SHORT) as folder, _silenced():
        if address == LOCAL:
            settings |= {"_temp_dir": folder, "include_dashboard": False}
        elif address != AUTO:
            check_reachable(address)
        try:
            ray.init(address, **settings)
        except FAULTS as error:
            refuse(address, words(error))
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _silenced() -> Iterator[None]:
    """Keep what Ray prints off both streams; `sys.stderr` is a way around that."""
    terminal = os.dup(STDERR)
    with (
        Path(os.devnull).open("w") as nothing,
        os.fdopen(terminal, "w") as shown,
        redirect_stderr(shown),
        redirect_stdout(nothing),
    ):
        os.dup2(nothing.fileno(), STDERR)
        try:
            yield
        finally:
            os.dup2(terminal, STDERR)


def planned(
    slots: int, count: int | None, cpus: int | None, gpus: float | None
) -> Replicas:
    """Return how many replicas start, and what each occupies; None: one a node or GPU,
    as many CPUs as fit, one GPU where there are GPUs.

    Raises InvalidRequest if the nodes have less.
    """
    alive = nodes()
    most = int(max(node.get("CPU", 0) for node in alive))
    if gpus is None:
        gpus = float(any("GPU" in node for node in alive))
    if count is None:
        count = sum(rooms(alive, 0, gpus)) if gpus else sum(map(has_room, alive))
    if cpus is None:
        choices = range(most, 1, -1)
        fitting = (one for one in choices if sum(rooms(alive, one, gpus)) >= count)
        cpus = next(fitting, 1)
    count = max(1, count)
    room = sum(rooms(alive, cpus, gpus))
    if room < count:
        raise InvalidRequest(
            f"cannot start {count} replicas with {cpus} CPUs and {gpus:g} GPUs each: "
            f"the cluster has room for {room}, and its largest node has {most} CPUs. "
            "Lower --replicas, --replica-cpus or --replica-gpus"
        )
    return Replicas(count, cpus, gpus, AHEAD * slots)


def _with_bodies(table: pa.Table, path: Path) -> pa.Table:
    """Return the lines of a task with their bodies, read from the file when needed."""
    rows = table.to_pylist()
    with path.open("rb") as file:
        for row in rows:
            file.seek(row["start"])
            row["body"] = json.dumps(json.loads(file.read(row["length"]))["body"])
    return pa.Table.from_pylist(rows)


class Replica:
    """A model on a node; the server's own routes answer."""

    def __init__(self, load: Load, folder: str) -> None:
        """`folder`: where relative paths begin, if the node has it."""
        self._fault = ""
        if Path(folder).is_dir():
            os.chdir(folder)
        try:
            service = load()
        except (ForewordError, OSError) as error:
            self._fault = words(error)
            return
        self._inside = Inside(build_generation(service))
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, daemon=True).start()

    def __call__(self, table: pa.Table) -> pa.Table:
        """Answer the lines of a task; tasks run in threads and share the loop."""
        if self._fault:
            return pa.Table.from_pylist([{"fault": self._fault}])
        answering = self._answers(table.to_pylist())
        rows = asyncio.run_coroutine_threadsafe(answering, self._loop).result()
        return pa.Table.from_pylist(rows)

    async def _answers(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        bodies = {row["custom_id"]: json.loads(row.pop("body")) for row in rows}
        answers = []

        async def answer(line: Line) -> Response:
            return await self._inside.post(line.url, bodies[line.custom_id])

        def write(line: Line, response: Response) -> None:
            record = asdict(response) | {"body": json.dumps(response.body)}
            answers.append({"custom_id": line.custom_id, "fault": ""} | record)

        lines = [Line(**row) for row in rows]
        await run(lines, answer, write, len(lines))
        return answers


def answer(
    read: RequestFile,
    pending: Sequence[Line],
    write: Callable[[Line, Response], None],
    load: Load,
    replicas: Replicas,
) -> None:
    """Answer these requests, each once; a replica that ends may leave some, and they
    are asked again.

    Raises ForewordError if replicas cannot load the model, or end without answers.
    """
    left = {line.custom_id: line for line in pending}
    fruitless = 0
    while left:
        before = len(left)
        reason = "they ended"
        try:
            for row in _answers(read, [*left.values()], load, replicas):
                line = left.pop(row["custom_id"], None)
                if line is not None:
                    body = json.loads(row["body"])
                    write(line, Response(row["status"], row["request_id"], body))
        except RayError as error:
            reason = words(error)
        fruitless = 0 if len(left) < before else fruitless + 1
        if fruitless == TRIES:
            raise ForewordError(
                f"cannot get answers from the replicas: {reason}. {AGAIN}"
            )
        replicas = _remaining(replicas)


def _remaining(replicas: Replicas) -> Replicas:
    """Return the replicas that the nodes still hold; some may have gone."""
    room = sum(rooms(nodes(), replicas.cpus, replicas.gpus))
    if not room:
        raise ForewordError(f"cannot go on: no node is left for a replica. {AGAIN}")
    return replace(replicas, count=min(replicas.count, room))


def lines_together(lines: Sequence[Line], width: int) -> int:
    """Return the lines of a task; `width`: requests in flight at all replicas."""
    few = min(FEW_LINES, max(1, len(lines) // width))
    length = sum(line.length for line in lines) // len(lines)
    return min(max(few, len(lines) // MOST_TASKS), max(1, BLOCK // length))


def _answers(
    read: RequestFile, lines: Sequence[Line], load: Load, replicas: Replicas
) -> Iterator[dict[str, Any]]:
    """Yield answers as tasks end, in any order; none of a replica that ends."""
    count = replicas.count
    together = lines_together(lines, count * replicas.width)
    tasks = ceil(len(lines) / together)
    # no replica takes all of a short file, and none waits for the last line of a task
    calls = min(max(2, ceil(replicas.width / together)), ceil(tasks / count))
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = BLOCK
    context.max_errored_blocks = -1
    rows = [asdict(line) for line in lines]
    dataset = ray.data.from_items(rows, override_num_blocks=tasks)
    warnings.filterwarnings("ignore", "`ray_remote_args`", RayDeprecationWarning)
    here = ray.get_runtime_context().get_node_id()
    path = read.path.absolute()
    requests = dataset.map_batches(
        lambda table: _with_bodies(table, path),
        batch_size=None,
        batch_format="pyarrow",
        num_cpus=0,
        compute=ray.data.TaskPoolStrategy(READERS),
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
    )
    answered = requests.map_batches(
        Replica,
        fn_constructor_args=(load, str(Path.cwd())),
        batch_size=None,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(
            size=count,
            max_tasks_in_flight_per_actor=calls,
            max_concurrent_calls_per_actor=calls,
            enable_true_multi_threading=True,
        ),
        num_cpus=replicas.cpus,
        num_gpus=replicas.gpus,
        # else tasks wait for the node that they ran on, which may never come back
        max_task_retries=0,
    )
    tables: Iterable[Any] = answered.iter_batches(
        batch_size=None, batch_format="pyarrow", prefetch_batches=0
    )
    for table in tables:
        for row in table.to_pylist():
            if row["fault"]:
                raise ForewordError(f"{row['fault']}. {AGAIN}")
            yield row
