"""Frames in pieces, places on machines, and the choice among replicas."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreword.errors import InvalidRequest
from foreword.native import cgroups
from foreword_server.log import Log
from foreword_server.replicas import places as module
from foreword_server.replicas.charges import Charge
from foreword_server.replicas.exchange import Exchange
from foreword_server.replicas.frames import (
    MEDIA_TYPE,
    Frame,
    FrameReader,
    Sent,
    State,
    sent_of,
)
from foreword_server.replicas.places import Place, places
from foreword_server.replicas.pool import SLACK, Answered, Asked, Pool, Replica, chosen
from foreword_server.replicas.prefixes import BLOCK, KEPT, TOKEN, Prefixes, blocks
from foreword_server.replicas.process import Start, bound
from foreword_server.replicas.supervise import Supervisor
from foreword_server.settings import Settings

FRAMES = st.builds(
    Frame,
    st.sampled_from(["start", "round", "more", "end", "whole", "log"]),
    st.binary(max_size=40),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=3),
)


@given(st.lists(FRAMES, max_size=6), st.integers(1, 50))
def test_frames_are_read_in_any_pieces(frames: list[Frame], size: int) -> None:
    whole = b"".join(one.encoded for one in frames)
    reader = FrameReader()
    pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
    assert [one for piece in pieces for one in reader.push(piece)] == frames


def test_what_was_sent_survives_encoding():
    sent = Sent()
    assert sent_of("0", b"body") == (sent, b"body")
    sent.add(Frame("start", b"x", asdict(State("a", 3, 5, True))))
    sent.add(Frame("more", b"x"))
    sent.add(Frame("round", b"x", {"choice": 1, "tokens": [4, 5]}))
    assert sent == Sent(State("a", 3, 5, True), [(1, [4, 5], None)])
    assert sent.frames == 2
    size = str(len(sent.encoded))
    assert sent_of(size, sent.encoded + b"body") == (sent, b"body")


# ---- places


def machine(folder: Path, *nodes: str) -> None:
    """Write what Linux says of these nodes."""
    for number, cpus in enumerate(nodes):
        (folder / f"node{number}").mkdir()
        (folder / f"node{number}" / "cpulist").write_text(cpus + "\n")


@pytest.mark.parametrize(
    ("nodes", "allowed", "count", "expected"),
    [
        (["0-7"], 8, None, [(range(8), None)]),
        (["0-3", "4-7"], 8, None, [(range(4), 0), (range(4, 8), 1)]),
        (["0-7"], 8, 2, [(range(4), None), (range(4, 8), None)]),
        # all have as many cores, so that all write the same
        (["0-6"], 7, 2, [(range(3), None), (range(3, 6), None)]),
        (["0-3", "4-7"], 8, 3, [([0, 1], 0), ([2, 3], 0), ([4, 5], 1)]),
        # of the second node, two cores are allowed
        (["0-3", "4-7"], 6, None, [([0, 1], 0), ([4, 5], 1)]),
        # a node of memory alone
        (["0-3", ""], 4, None, [(range(4), None)]),
        # a larger node gets more replicas, or all
        (["0-11", "12-15"], 16, 4, [(range(n, n + 4), n // 12) for n in (0, 4, 8, 12)]),
        (["0-11", "12-15"], 16, None, [(range(12), None)]),
    ],
)
def test_replicas_are_spread_over_nodes(
    tmp_path, monkeypatch, nodes, allowed, count, expected
):
    machine(tmp_path, *nodes)
    monkeypatch.setattr(cgroups, "NODES", tmp_path)
    monkeypatch.setattr(module, "CORE", str(tmp_path / "none-{cpu}-{part}"))
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {*range(allowed)})
    found = places(count, gpus=False)
    wanted = [(tuple(cpus), node) for cpus, node in expected]
    assert [(one.cpus, one.node) for one in found] == wanted
    nodes_of = [one.node for one in found]
    assert [one.beside for one in found] == [nodes_of.count(one) for one in nodes_of]
    assert {one.sharers for one in found} == {len(found)}


@pytest.mark.parametrize(
    ("most", "count", "shares"),
    [
        (4, None, [4]),
        (12, None, [6, 6]),
        (4, 2, [2, 2]),
        (3, 2, [1, 1]),
        (99, 2, [8, 8]),
    ],
)
def test_replicas_share_the_quota_of_their_container(
    tmp_path, monkeypatch, most, count, shares
):
    machine(tmp_path, "0-7", "8-15")
    monkeypatch.setattr(cgroups, "NODES", tmp_path)
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {*range(16)})
    found = places(count, gpus=False, most=most)
    assert [len(one.cpus) for one in found] == shares
    with pytest.raises(InvalidRequest, match="there are 2 cores"):
        places(3, gpus=False, most=2)


def test_more_replicas_than_cores_or_gpus_are_refused(monkeypatch):
    with pytest.raises(InvalidRequest, match="cores"):
        places(5000, gpus=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-5")
    assert [one.device for one in places(None)] == ["3", "GPU-5"]
    with pytest.raises(InvalidRequest, match="there are 2 GPUs"):
        places(3)


def test_place_is_said_in_short():
    assert str(Place((0, 1, 2, 5), 1)) == "cores 0-2,5, node 1"
    assert str(Place(device="3")) == "GPU 3"
    assert str(Place()) == "all cores"


def test_a_replica_takes_its_place_before_torch_counts_cores():
    """The process of a replica unpickles these modules first."""
    program = (
        "import sys, foreword_server.replicas.process\nsys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=False)
    assert done.returncode == 0


def test_replicas_divide_free_memory(tmp_path, monkeypatch):
    node = tmp_path / "node1"
    node.mkdir()
    lines = ["MemTotal: 900", "MemFree: 6", "Active(file): 3", "Inactive(file): 1"]
    (node / "meminfo").write_text("".join(f"Node 1 {one} kB\n" for one in lines))
    for name in (cgroups.SHARERS, cgroups.NODE):
        monkeypatch.delenv(name, raising=False)
    assert cgroups.share_of(64 * 1024, tmp_path) == 64 * 1024
    monkeypatch.setenv(cgroups.SHARERS, "4")
    assert cgroups.share_of(64 * 1024, tmp_path) == 16 * 1024
    monkeypatch.setenv(cgroups.NODE, "1:2")
    assert cgroups.share_of(64 * 1024, tmp_path) == 5 * 1024
    assert cgroups.share_of(8 * 1024, tmp_path) == 2 * 1024


@pytest.mark.slow
def test_keys_and_values_of_a_replica_take_its_share():
    """The process of a place computes their limit."""
    program = (
        "from foreword_server.replicas.places import Place\n"
        "Place(sharers={}).take()\n"
        "from foreword import bundled\n"
        "from foreword.model.model import Model\n"
        "from foreword.model.kv import limit\n"
        "limit.free_memory = lambda device: 2**30\n"
        "print(Model.load(bundled.draft(), dtype='float32').cache_tokens)"
    )
    commands = [[sys.executable, "-c", program.format(count)] for count in (1, 2)]
    outputs = [subprocess.check_output(command) for command in commands]
    whole, half = map(int, outputs)
    assert whole // 2 == half > 0


def test_sockets_have_short_paths(tmp_path, monkeypatch):
    """Batch systems give temporary folders with long paths."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    supervisor = Supervisor(Start(None, {}, Settings()), [Place()], 1, Log())
    try:
        with closing(bound(supervisor._processes[0].socket)) as listener:
            assert listener.getsockname()
    finally:
        asyncio.run(supervisor.stop())


# ---- the choice


class Framed:
    """A replica that sends frames, each when the one before has been read."""

    def __init__(self, *frames: Frame) -> None:
        self._frames = frames

    @asynccontextmanager
    async def ask(self, asked: Asked) -> AsyncIterator[Answered]:
        async def pieces() -> AsyncIterator[bytes]:
            for frame in self._frames:
                yield frame.encoded

        yield Answered(200, [(b"content-type", MEDIA_TYPE.encode())], pieces())


@pytest.mark.parametrize("kind", ["whole", "end"])
def test_log_is_complete_before_a_client_has_all(kind):
    """A client that has all leaves, and what follows would be cancelled."""
    log: dict[str, Any] = {}
    seen: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        if message.get("body"):
            seen.append({**log})

    about = {"completion_tokens": 3}
    framed = Framed(Frame(kind, b"text"), Frame("log", about=about))
    pool = Pool([Replica("a", framed.ask, ready=True)])
    asked = Asked("POST", "/v1/completions", [])
    asyncio.run(Exchange(pool, asked, "id", "tenant", send, log=log).run())
    assert seen == [{"replica": "a", **about}]


def silent(asked: Asked) -> None:
    """A replica that is not asked here."""
    raise AssertionError(asked)


def replica(name: str, running: int = 0) -> Replica:
    return Replica(name, silent, running=running)  # type: ignore[arg-type]


def body(text: str) -> bytes:
    return b'{"model":"m","messages":[{"content":"' + text.encode() + b'"}]}'


def test_least_busy_replica_is_chosen():
    assert chosen([replica("a", 2), replica("b", 1)], []).name == "b"
    assert chosen([replica("a", 1), replica("b", 1)], []).name == "a"


def read_by(pool: Pool, text: str, stack: ExitStack) -> Replica:
    """Begin the answer to a text; return the replica that gives it."""
    beginnings = blocks(body(text), "key")
    request = Charge()
    replica = asyncio.run(pool.pick(beginnings, (), request))
    stack.enter_context(pool.running(replica, 1, beginnings, request))
    return replica


def test_chats_with_one_system_prompt_spread_over_replicas():
    """Together with more of them than that prompt saves."""
    pool = Pool([replica("a"), replica("b")])
    for one in pool.replicas:
        pool.mark(one, ready=True)
    system = "Answer in short sentences. " * 80
    assert len(blocks(body(system), "key")) == 4
    with ExitStack() as stack:
        for number in range(8):
            read_by(pool, f"{system} Chat {number}.", stack)
        assert [one.running for one in pool.replicas] == [4, 4]


def test_long_conversation_returns_to_its_replica():
    """Unless that is far busier: by more answers than the text is worth."""
    first, other = pool_of = [replica("a"), replica("b")]
    pool = Pool(pool_of)
    for one in pool_of:
        pool.mark(one, ready=True)
    text = "A long conversation. " * 2000
    beginnings = blocks(body(text), "key")
    with ExitStack() as stack:
        assert read_by(pool, text, stack) is first
    for busier, expected in ((0, first), (SLACK - 1, first), (SLACK + 1, other)):
        first.running = busier
        assert chosen(pool_of, blocks(body(text + "more"), "key")) is expected
    first.running = 1
    assert chosen(pool_of, blocks(body(text + "more"), "other")) is other
    first.prefixes.fit(BLOCK * len(beginnings) // TOKEN // 2)
    first.prefixes.add([b"new"])
    assert first.prefixes.matches(beginnings) < len(beginnings) // 2 + 1


def test_fields_before_the_prompt_do_not_matter():
    text = "word " * BLOCK
    other = body(text).replace(b'"m"', b'"m","temperature":1')
    assert blocks(body(text), "k")[:5] == blocks(other, "k")[:5]
    assert blocks(b"{}", "k") == []


def test_oldest_ends_of_prompts_are_forgotten_first():
    prefixes = Prefixes()
    long = [number.to_bytes(8, "big") for number in range(KEPT)]
    prefixes.add(long)
    assert prefixes.matches(long) == KEPT
    prefixes.add([b"new"])
    assert prefixes.matches([b"new"]) == 1
    assert prefixes.matches(long) == KEPT - 1
