"""Where replicas and ingresses of a cluster run, and how many there are."""

import pytest

from foreword.errors import InvalidRequest

pytest.importorskip("ray")
from foreword_server.cluster.placing import Scale, ingresses, proxies
from foreword_server.replicas.process import Start
from foreword_server.settings import Settings

KEYS = frozenset({b"key"})
HEAD = {"node:__internal_head__": 1.0, "memory": 1.0}
WORKERS = [{"CPU": 64.0}, {"CPU": 32.0}]


def test_replica_takes_the_smallest_node_that_has_cpus():
    assert Scale().share([HEAD, *WORKERS]) == (32.0, 0.0)
    assert Scale().share([HEAD, {"CPU": 8.0, "GPU": 2.0}]) == (1.0, 1.0)
    counts = Scale(most=2).counts(32)
    target = counts["autoscaling_config"]["target_ongoing_requests"]
    assert 16 < target < 32 < counts["max_ongoing_requests"]


def test_ranks_take_a_gpu_each_of_one_node():
    nodes = [{"CPU": 8.0, "GPU": 4.0}]
    assert Scale(ranks=2, most=9).share(nodes) == (2.0, 2.0)
    assert Scale(ranks=2, most=9).together(nodes) == 2
    assert Scale(ranks=2).share(WORKERS) == (32.0, 0.0)
    with pytest.raises(InvalidRequest, match="each of its 2 ranks takes a GPU"):
        Scale(ranks=2, gpus=1).share(nodes)
    with pytest.raises(InvalidRequest, match="takes 8 GPUs, and the largest node"):
        Scale(ranks=8).check(nodes)


@pytest.mark.filterwarnings("ignore")  # of Ray
def test_replicas_get_paths_and_variables_of_the_command(monkeypatch, tmp_path):
    from foreword_server.cluster.serve import environment
    from foreword_server.commands.on_ray import absolutes

    monkeypatch.chdir(tmp_path)
    (tmp_path / "draft").mkdir()
    names = {"draft": "draft", "adapters": {"sql": "draft", "other": "hub/id"}}
    path = str(tmp_path / "draft")
    adapters = {"sql": path, "other": "hub/id"}
    assert absolutes(names) == {"draft": path, "adapters": adapters}
    monkeypatch.setenv("OTEL_SERVICE_NAME", "ours")
    monkeypatch.setenv("FOREWORD_API_KEYS", "secret")
    assert environment()["OTEL_SERVICE_NAME"] == "ours"
    assert "secret" not in environment().values()


@pytest.mark.parametrize(
    ("settings", "location", "count"),
    [
        (Settings(), "HeadOnly", 1),
        (Settings(host="10.0.0.1", keys=KEYS), "HeadOnly", 1),
        (Settings(host="0.0.0.0", keys=KEYS), "EveryNode", 2),
        (Settings(host="0.0.0.0", keys=KEYS, rate=1), "EveryNode", 1),
    ],
)
def test_ingresses_share_connections_unless_they_count_keys(settings, location, count):
    assert proxies(settings) == location
    assert ingresses(settings, [HEAD, *WORKERS]) == count


@pytest.mark.filterwarnings("ignore")  # of Ray
def test_replica_of_another_version_does_not_start():
    from foreword_server.cluster.engine import Engine

    with pytest.raises(InvalidRequest, match=r"Foreword \d.*and this command 0\.0\.0"):
        Engine(Start(None, {}, Settings()), "0.0.0")
