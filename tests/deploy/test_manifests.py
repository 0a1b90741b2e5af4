"""What deploys a server is valid by its own schema, and names what the server has."""

import json
import re
import shlex
import subprocess
from importlib import metadata
from pathlib import Path
from shutil import which
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml
from compose_spec import PyCompose
from dockerfile_parse import DockerfileParser
from jsonschema import Draft202012Validator, ValidationError

from foreword.cli.app import app
from foreword_server import metrics
from foreword_server.commands.serve import KEYS
from foreword_server.routes import ROUTES
from foreword_server.settings import Settings

RAY_CLUSTER = {"enableInTreeAutoscaling", "headGroupSpec", "rayVersion"}
RAY_CLUSTER |= {"workerGroupSpecs"}
RAY_WORKERS = {"groupName", "replicas", "minReplicas", "maxReplicas"}
OPEN = {route.path for route in ROUTES if route.access == "open"}
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = "1.34"
VERSION = metadata.version("foreword")
SCHEMAS = json.loads(
    (Path(__file__).parent / "schemas" / "skypilot.json").read_text(encoding="utf-8")
)
"""SkyPilot's schemas (the file has their source): it cannot be installed beside us."""


def options() -> set[str]:
    """Return the options of `foreword serve`."""
    command = typer.main.get_command(app).commands["serve"]
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)}


def named(words: list[str]) -> set[str]:
    return {word for word in words if word.startswith("-")}


def resources(folder: str = "base") -> dict[str, dict[str, Any]]:
    """Return the resources of a folder of manifests by kind."""
    path = DEPLOY / "kubernetes" / folder
    words = ["kubectl", "kustomize", str(path)]
    if folder == "base":
        text = (path / "foreword.yaml").read_text(encoding="utf-8")
    else:
        text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
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
    for probe in probes:  # of a server that uses all its CPUs
        assert 5 <= probe["timeoutSeconds"] <= probe["periodSeconds"]
    arguments = container["args"]
    assert named(arguments) <= options()
    # the service forgets a pod before it refuses requests
    assert {"--leave-after", "--drain"} <= named(arguments)
    seconds = [int(word) for word in arguments if word.isdecimal()]
    assert template["spec"]["terminationGracePeriodSeconds"] > sum(seconds)
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["image"] == f"foreword:{VERSION}"
    assert container["resources"]["limits"] == container["resources"]["requests"]
    labels = template["metadata"]["labels"].items()
    (spread,) = template["spec"]["topologySpreadConstraints"]
    for selector in (
        spread["labelSelector"]["matchLabels"],
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
    ):
        assert selector.items() <= labels
    (port,), (target,) = container["ports"], found["Service"]["spec"]["ports"]
    assert target["targetPort"] == port["name"]
    # nothing that a default cluster could not give
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
    assert all(volume["emptyDir"] == {} for volume in template["spec"]["volumes"])


@pytest.mark.skipif(which("kubectl") is None, reason="kubectl applies overlays")
def test_overlays_change_what_they_name():
    base = resources()
    for overlay in ("models", "gpu", "autoscaling"):
        found = resources(f"overlays/{overlay}")
        for kind in base:
            kubernetes_validate.validate(found[kind], KUBERNETES, strict=True)
        (container,) = found["Deployment"]["spec"]["template"]["spec"]["containers"]
        assert named(container["args"]) <= options()
        has_gpu = "nvidia.com/gpu" in container["resources"]["limits"]
        assert has_gpu == container["image"].endswith("-cuda") == (overlay == "gpu")
    assert "replicas" not in found["Deployment"]["spec"]
    (trigger,) = found["ScaledObject"]["spec"]["triggers"]
    exported = Path(metrics.__file__).read_text(encoding="utf-8")
    for name in re.findall(r"vllm:\w+", trigger["metadata"]["query"]):
        assert f'"{name}"' in exported


def test_compose_file_follows_its_specification():
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    PyCompose.from_yaml(text)
    with pytest.raises(ValueError, match="stop_grace_period"):
        PyCompose.from_yaml(
            text.replace("stop_grace_period: 45s", "stop_grace_period: x")
        )
    services = yaml.safe_load(text)["services"]
    service, gpu = services["foreword"], services["foreword-gpu"]
    build = service["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    assert float(service["stop_grace_period"].rstrip("s")) > Settings().drain
    assert service["init"] is True
    assert gpu["image"] == f"{service['image']}-cuda" == f"foreword:{VERSION}-cuda"
    arguments = [one.split("=")[0] for stage in stages()[2:] for one in stage["ARG"]]
    assert set(gpu["build"]["args"]) == set(arguments)
    scrape = yaml.safe_load(text)["configs"]["scrape"]["content"]
    (job,) = yaml.safe_load(scrape)["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["foreword:8000"]}]


def stages() -> list[dict[str, list[str]]]:
    """Return the instructions of each stage of the image; the first are arguments."""
    found: list[dict[str, list[str]]] = [{}]
    for step in DockerfileParser(str(DEPLOY)).structure:
        if step["instruction"] == "FROM":
            found.append({})
        found[-1].setdefault(step["instruction"], []).append(step["value"])
    return found


def test_image_runs_the_server_as_a_user_and_is_probed():
    *_, steps = stages()
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


def test_image_has_no_compiler_and_no_source():
    _, wheels, installed, steps = stages()
    assert steps["COPY"] == ["--from=installed /opt/foreword /opt/foreword"]
    assert steps["ARG"] == ['PACKAGES=""']
    assert re.findall(r"\b(?:gcc|git|make|pip)\b", steps["RUN"][0]) == []
    torch, ours = installed["RUN"]
    pins = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"PINNED_TORCH := {torch.split('==')[1].split()[0]}\n" in pins
    # no resolver may take another build of torch
    assert "pip install --no-cache-dir --no-deps /wheels" in ours
    (extras,) = re.findall(r"foreword\[([\w,]+)\]", ours)
    known = metadata.metadata("foreword").get_all("Provides-Extra")
    assert {"serve", "telemetry"} <= set(extras.split(",")) <= set(known)
    recipe = (ROOT / "recipes" / "wheels.py").read_text(encoding="utf-8")
    assert re.findall(r"ziglang==[\d.]+", wheels["RUN"][0])[0] in recipe


def test_builder_is_sent_only_what_the_image_copies():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    everything, *patterns = [line for line in lines if not line.startswith("#")]
    assert everything == "*"
    sent = [one.removeprefix("!") for one in patterns if one.startswith("!")]
    assert all((ROOT / path).exists() for path in sent)
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY ([\w.]+)", text, re.MULTILINE)
    assert {path.split("/")[0] for path in sent} == set(copied)


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
            if word.startswith("foreword["):
                assert f'"{word}"' in image
            if word.startswith(".") or word.endswith(".txt"):
                assert (ROOT / word).exists()


def ray_files() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what `serve deploy` gets, and the service of KubeRay."""
    files = [DEPLOY / "ray" / f"{name}.yaml" for name in ("serve", "rayservice")]
    plain, service = (yaml.safe_load(file.read_text()) for file in files)
    return plain, service["spec"]


@pytest.mark.filterwarnings("ignore")  # of Ray
@pytest.mark.parametrize("number", [0, 1])
def test_file_follows_the_schema_of_ray_and_names_options(number):
    schema = pytest.importorskip("ray.serve.schema")
    from foreword_server.cluster import build

    plain, service = ray_files()
    given = (plain, yaml.safe_load(service["serveConfigV2"]))[number]
    schema.ServeDeploySchema.model_validate(given)
    # Ray ignores keys that it does not know
    assert given.keys() <= schema.ServeDeploySchema.model_fields.keys()
    (application,) = given["applications"]
    assert application.keys() <= schema.ServeApplicationSchema.model_fields.keys()
    assert application["import_path"] == f"{build.__name__}:{build.app.__name__}"
    assert build.parsed(application["args"])["drain"] == 60
    given["applications"] *= 2
    with pytest.raises(ValueError, match="multiple configs"):
        schema.ServeDeploySchema.model_validate(given)


def test_pods_of_ray_have_room_for_what_they_run():
    """KubeRay's own fields are fields of its API, ray.io/v1."""
    service = ray_files()[1]
    cluster = service["rayClusterConfig"]
    head, (workers,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert cluster.keys() == RAY_CLUSTER
    assert workers.keys() == {*head, *RAY_WORKERS}
    for group in (head, workers):
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": group["template"]["spec"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)
        (container,) = pod["spec"]["containers"]
        assert container["image"] == f"foreword:{VERSION}-ray"
        assert [one["name"] for one in container["env"]] == [KEYS]
    args = yaml.safe_load(service["serveConfigV2"])["applications"][0]["args"]
    assert container["resources"]["limits"]["cpu"] == str(args["replica-cpus"])
    counts = f"{workers['minReplicas']}-{workers['maxReplicas']}"
    assert counts == args["replicas"]
    assert pod["spec"]["terminationGracePeriodSeconds"] > args["drain"]
    image = (DEPLOY / "ray" / "Dockerfile").read_text()
    assert f'"ray[serve]=={cluster["rayVersion"]}"' in image
    assert f"\nray=={cluster['rayVersion']}\n" in (ROOT / "constraints.txt").read_text()
