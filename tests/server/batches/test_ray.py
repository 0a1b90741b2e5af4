"""`foreword batch --ray`: nodes answer as one model, whichever process is killed."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from foreword_server.batches.lines import Line
from requested import answers, chat, texts, written
from waiting import wait_for

COUNT = 40
LENGTH = {"max_tokens": 200, "ignore_eos": True}
DRAWN = {"temperature": 1, "speculative": {"nodes": 4}}
REQUESTS = [chat(number, **LENGTH, **DRAWN) for number in range(COUNT)]
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    """Two nodes of one logical CPU each, in processes of this machine."""
    from ray.cluster_utils import Cluster

    head = NODE | {"include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head, connect=False)
    cluster.add_node(**NODE)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("asked") / "in.jsonl", *REQUESTS)


@pytest.fixture(scope="module")
def local(file) -> str:
    """What the command writes without Ray."""
    written = file.with_name("local.jsonl")
    ended = begun(file, written).communicate(timeout=300)
    assert lines(written) == COUNT, ended
    return written.read_text()


def begun(file: Path, written: Path, *more: str) -> subprocess.Popen[str]:
    words = ["batch", str(file), str(written), "--slots", "4", "--json", *more]
    return subprocess.Popen(
        [sys.executable, "-m", "foreword", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> dict[str, int]:
    """Return the summary of a run in which nothing failed."""
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    return json.loads(out)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait(process: subprocess.Popen[str], written: Path) -> None:
    """Return when the first answers are there, and others run."""
    wait_for(lambda: lines(written) >= 3, "three answers", process)
    assert lines(written) < COUNT


def replicas(doing: str = "") -> dict[int, int]:
    """Return the replicas' processes, each with its node's; `doing`: Ray's titles."""
    title = f"ray::MapWorker(MapBatches(Replica)){doing}"
    return {
        process.pid: process.ppid()
        for process in psutil.process_iter(["cmdline"])
        if title in " ".join(process.info["cmdline"] or ())
    }


@pytest.mark.slow
def test_two_nodes_answer_as_one_model_does(cluster, file, local, tmp_path):
    path = tmp_path / "out.jsonl"
    process = begun(file, path, "--ray", cluster.address)
    wait(process, path)
    nodes = set(replicas().values())
    summary = ended(process)
    assert len(nodes) == 2
    assert (summary["completed"], summary["failed"], summary["kept"]) == (COUNT, 0, 0)
    assert summary["tokens"] == COUNT * LENGTH["max_tokens"]
    assert texts(path.read_text()) == texts(local)
    found = answers(path.read_text()).values()
    drafted = [one["body"]["metrics"]["speculative_decoding"] for one in found]
    assert sum(one["num_accepted_draft_tokens"] for one in drafted) > COUNT


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_run_goes_on_after_its_own_process_is_killed(
    cluster, file, local, tmp_path, sign
):
    path = tmp_path / "out.jsonl"
    process = begun(file, path, "--ray", cluster.address)
    wait(process, path)
    process.send_signal(sign)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == (-sign if sign == signal.SIGKILL else 130)
    kept = lines(path)
    assert ended(begun(file, path, "--ray", cluster.address))["kept"] == kept
    assert texts(path.read_text()) == texts(local)


@pytest.mark.slow
def test_killed_replica_leaves_no_request_out_and_none_twice(
    cluster, file, local, tmp_path
):
    path = tmp_path / "out.jsonl"
    process = begun(file, path, "--ray", cluster.address)
    wait(process, path)
    psutil.Process(min(replicas(".submit"))).kill()
    assert ended(process)["completed"] == COUNT
    assert texts(path.read_text()) == texts(local)


@pytest.mark.slow
def test_killed_node_leaves_no_request_out_and_none_twice(
    cluster, file, local, tmp_path
):
    path = tmp_path / "out.jsonl"
    process = begun(file, path, "--ray", cluster.address)
    wait(process, path)
    (other,) = cluster.worker_nodes
    cluster.remove_node(other, allow_graceful=False)
    try:
        assert ended(process)["completed"] == COUNT
        assert texts(path.read_text()) == texts(local)
    finally:
        cluster.add_node(**NODE)


@pytest.mark.slow
def test_ray_starts_on_this_machine(file, local, tmp_path):
    path = tmp_path / "out.jsonl"
    wanted = ("--ray", "local", "--replicas", "1")
    assert ended(begun(file, path, *wanted))["completed"] == COUNT
    assert texts(path.read_text()) == texts(local)


@pytest.mark.slow
def test_model_that_cannot_be_loaded_ends_the_run(cluster, file, tmp_path):
    (tmp_path / "empty").mkdir()
    path = tmp_path / "out.jsonl"
    path.write_text("")
    words = ("--ray", cluster.address, "-m", str(tmp_path / "empty"))
    process = begun(file, path, *words)
    _, err = process.communicate(timeout=300)
    assert (process.returncode, path.read_text()) == (1, "")
    assert "error: cannot load" in err
    assert "Run the same command again to go on" in err


@pytest.mark.slow
def test_more_than_the_nodes_have_is_refused(cluster, file, tmp_path):
    path = tmp_path / "out.jsonl"
    for words, room in ((("--replica-cpus", "2"), 0), (("--replicas", "3"), 2)):
        process = begun(file, path, "--ray", cluster.address, *words)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 2
        assert f"the cluster has room for {room}, and its largest" in err


def test_cluster_that_does_not_answer_is_named(here):
    written(here.folder / "in.jsonl", chat(0))
    for address, reason in (
        ("127.0.0.1:9", "Connection refused"),
        ("there", "it is not an address"),
        ("ray://127.0.0.1:9", "it is not an address"),
    ):
        ended = here("batch", "in.jsonl", "out.jsonl", "--ray", address)
        assert ended.returncode == 2
        assert f"cannot join the Ray cluster '{address}': " in ended.stderr
        assert reason in ended.stderr


def test_replicas_need_a_cluster(here):
    written(here.folder / "in.jsonl", chat(0))
    ended = here("batch", "in.jsonl", "out.jsonl", "--replica-cpus", "2")
    assert ended.returncode == 2
    assert "cannot use '--replica-cpus' without '--ray'" in ended.stderr


@pytest.mark.parametrize(
    ("count", "length", "together"),
    [(40, 200, 2), (10_000, 200, 8), (10**6, 200, 122), (10**6, 2**18, 4)],
)
def test_large_files_have_few_tasks_of_few_bytes(count, length, together):
    on_ray = pytest.importorskip("foreword_server.batches.on_ray")
    line = Line("1", "/v1/completions", "1", 0, length)
    assert on_ray.lines_together([line] * count, 16) == together
