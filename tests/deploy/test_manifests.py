"""What deploys a server is valid by its own schema, and names what the server has."""

import json
import re
import shlex
from io import BytesIO
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from compose_spec import PyCompose
from dockerfile_parse import DockerfileParser
from jsonschema import Draft202012Validator, ValidationError

from foreword.cli.app import app
from foreword_server.commands.serve import KEYS
from foreword_server.routes import ROUTES
from foreword_server.settings import Settings

OPEN = {route.path for route in ROUTES if route.access == "open"}
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = "1.34"
SCHEMAS = json.loads(
    (Path(__file__).parent / "schemas" / "skypilot.json").read_text(encoding="utf-8")
)
"""SkyPilot's schemas (the file has their source): it cannot be installed beside us."""


def options() -> set[str]:
    """Return the options of `foreword serve`."""
    serve = typer.main.get_command(app).commands["serve"]
    return {name for one in serve.params for name in (*one.opts, *one.secondary_opts)}


def named(words: list[str]) -> set[str]:
    return {word for word in words if word.startswith("-")}


def resources() -> dict[str, dict[str, Any]]:
    """Return the resources of the manifests by kind."""
    text = (DEPLOY / "kubernetes" / "foreword.yaml").read_text(encoding="utf-8")
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


@pytest.mark.parametrize("kind", resources())
def test_resource_follows_the_schema_of_kubernetes(kind):
    resource = resources()[kind]
    kubernetes_validate.validate(resource, KUBERNETES, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(
            resource | {"spec": {"mistake": 1}}, KUBERNETES, strict=True
        )


def test_pods_are_probed_stopped_and_selected_as_the_server_is():
    found = resources()
    template = found["Deployment"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    probes = [
        container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")
    ]
    paths = [probe["httpGet"]["path"] for probe in probes]
    assert paths == ["/ready", "/ready", "/health"]
    assert {probe["httpGet"]["path"] for probe in probes} <= OPEN
    arguments = container["args"]
    assert named(arguments) <= options()
    drain = float(arguments[arguments.index("--drain") + 1])
    assert template["spec"]["terminationGracePeriodSeconds"] > drain
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    labels = template["metadata"]["labels"].items()
    for selector in (
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
    ):
        assert selector.items() <= labels
    (port,), (target,) = container["ports"], found["Service"]["spec"]["ports"]
    assert target["targetPort"] == port["name"]
    claims = [one.get("persistentVolumeClaim") for one in template["spec"]["volumes"]]
    assert found["PersistentVolumeClaim"]["metadata"]["name"] in [
        claim["claimName"] for claim in claims if claim
    ]


def test_compose_file_follows_its_specification():
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    PyCompose.from_yaml(text)
    with pytest.raises(ValueError, match="stop_grace_period"):
        PyCompose.from_yaml(
            text.replace("stop_grace_period: 45s", "stop_grace_period: x")
        )
    service = yaml.safe_load(text)["services"]["foreword"]
    build = service["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    assert float(service["stop_grace_period"].rstrip("s")) > Settings().drain
    scrape = yaml.safe_load(text)["configs"]["scrape"]["content"]
    (job,) = yaml.safe_load(scrape)["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["foreword:8000"]}]


def test_image_runs_the_server_as_a_user_and_is_probed():
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    parser = DockerfileParser(fileobj=BytesIO(text.encode()))
    steps: dict[str, list[str]] = {}
    for step in parser.structure:
        steps.setdefault(step["instruction"], []).append(step["value"])
    (entry,) = map(json.loads, steps["ENTRYPOINT"])
    assert entry[:2] == ["foreword", "serve"]
    assert named(entry) <= options()
    port = entry[entry.index("--port") + 1]
    assert steps["EXPOSE"] == [port]
    assert steps["USER"] == ["10001"]
    (probe,) = steps["HEALTHCHECK"]
    (url,) = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", probe)
    assert url[0] == port
    assert url[1] in OPEN
    for copy in steps["COPY"]:
        for source in copy.split()[:-1]:
            assert (ROOT / source).exists()
    pins = (ROOT / "Makefile").read_text(encoding="utf-8")
    (torch,) = re.findall(r"torch==[\d.]+", text)
    assert f"PINNED_TORCH := {torch.removeprefix('torch==')}\n" in pins


@pytest.fixture
def task() -> dict[str, Any]:
    text = (DEPLOY / "skypilot" / "foreword.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


def check_task(kind: str, given: dict[str, Any]) -> None:
    """Raise ValidationError for what SkyPilot would refuse."""
    Draft202012Validator(SCHEMAS[kind]).validate(given)


@pytest.mark.parametrize("kind", ["task", "service", "resources"])
def test_service_follows_the_schema_of_skypilot(task, kind) -> None:
    part = task if kind == "task" else task[kind]
    check_task(kind, part)
    with pytest.raises(ValidationError, match="mistake"):
        check_task(kind, part | {"mistake": 1})


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("task", "run", ["foreword"]),
        ("task", "secrets", {"KEY": 1}),
        ("service", "readiness_probe", {"timeout_seconds": 5}),
        ("service", "replica_policy", {"min_replicas": "two"}),
        ("resources", "ports", {}),
    ],
)
def test_wrong_values_are_refused_by_skypilot(task, kind, name, value) -> None:
    part = task if kind == "task" else task[kind]
    with pytest.raises(ValidationError):
        check_task(kind, part | {name: value})


def test_replicas_are_probed_and_started_as_the_server_is(task) -> None:
    service = task["service"]
    assert service["readiness_probe"]["path"] in OPEN
    policy = service["replica_policy"]
    assert 1 < policy["min_replicas"] <= policy["max_replicas"]
    words = shlex.split(task["run"], comments=True)
    assert words[:3] == ["exec", "~/foreword/bin/foreword", "serve"]
    arguments = words[3:]
    assert named(arguments) <= options()
    port = arguments[arguments.index("--port") + 1]
    assert task["resources"]["ports"] == int(port)
    assert float(arguments[arguments.index("--drain") + 1]) == Settings().drain
    # what is open beyond the machine needs a key
    assert arguments[arguments.index("--host") + 1] == "0.0.0.0"
    assert task["secrets"] == {KEYS: None}
    mounts = [word for word in arguments if word.startswith("/")]
    assert mounts
    assert all(word.startswith("/models/") for word in mounts)
    assert set(task["file_mounts"]) == {"/models"}


def test_setup_installs_what_the_image_does(task) -> None:
    image = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    for line in task["setup"].splitlines():
        for word in shlex.split(line):
            if "==" in word or word.startswith(("http", "gcc", "libc6")):
                assert word in image
            if word.startswith("."):
                assert f"/source{word.removeprefix('.')}" in image
            if word.endswith(".txt"):
                assert (ROOT / word).is_file()
