"""Ray Serve's own files, which name a builder and options of `foreword serve`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psutil
import pytest
import yaml

from asking import user
from foreword import bundled
from foreword.errors import ForewordError
from waiting import free_port, wait_for

pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # of Ray
FILE = Path(__file__).parents[3] / "deploy" / "ray" / "serve.yaml"
KEY = {"authorization": "Bearer key"}
BUILT = "built app 'foreword' successfully"
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"slotz": 4}, "No such option: --slotz"),
        ({"slots": "many"}, "integer"),
        ({"method": "unknown"}, "'unknown'"),
        ({"replicas": "3-1"}, "neither a number nor a range"),
        ({"host": "0.0.0.0"}, "see its 'http_options'"),
        ({"models": "/", "model": "x"}, "'--models' with MODEL"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_placed(args, words):
    from foreword_server.cluster.build import app

    with pytest.raises(ForewordError, match=words):
        app(args)


def test_arguments_are_options_of_the_command():
    from foreword_server.cluster.build import parsed

    given = {"model": "x", "any_model": True, "log-json": False, "lora": ["a=b", "c=d"]}
    values = parsed({**given, "temperature": 0.5, "draft": None})
    assert (values["target"], values["temperature"]) == ("x", 0.5)
    assert (values["any_model"], values["log_json"]) == (True, False)
    assert (values["lora"], values["draft"]) == (["a=b", "c=d"], None)


@contextmanager
def deployed(path: Path, log: Path, **environment: str) -> Iterator[Callable[[], str]]:
    """Run a file on a cluster of its own, made for it; yield what reads the log."""
    command = ("-m", "ray.serve.scripts", "run", str(path))
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", **environment}
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=written,
            stderr=subprocess.STDOUT,
            env=os.environ | quiet,
        )
    try:
        yield log.read_text
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def file_of(folder: Path, host: str, **args: Any) -> tuple[Path, str]:
    """Return the file of deploy/ with other arguments, and its address."""
    values = yaml.safe_load(FILE.read_text())
    values["http_options"] = {"host": host, "port": free_port()}
    values["applications"][0]["args"] = {"replica-cpus": 1, "nodes": 4, **args}
    path = folder / "serve.yaml"
    path.write_text(yaml.safe_dump(values))
    return path, f"http://127.0.0.1:{values['http_options']['port']}"


def answer(url: str, model: str, seed: int) -> dict[str, Any]:
    body = dict(model=model, seed=seed, max_tokens=8, messages=[user("Go on.")])
    response = httpx.post(url + CHAT, json=body, headers=KEY, timeout=100)
    assert response.status_code == 200, response.text
    return response.json()


def stream(url: str, then: Callable[[], object]) -> str:
    """Return the text of an answer; call `then` once it has begun."""
    body = dict(model="small", seed=3, max_tokens=900, ignore_eos=True, stream=True)
    body |= dict(messages=[user("Count.")])
    text = ""
    with httpx.stream("POST", url + CHAT, json=body, headers=KEY, timeout=100) as got:
        for line in got.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                text += event["choices"][0]["delta"].get("content") or ""
                if text and then():
                    then = bool
    return text


def kill_models() -> bool:
    """Kill the processes of models, which are children of replicas."""
    for process in psutil.Process().children(recursive=True):
        title = str(process.as_dict(["cmdline"])["cmdline"])
        if "ray::ServeReplica:foreword:Engine" in title:
            for child in process.children():
                child.kill()
    return True


@pytest.mark.slow
def test_models_are_multiplexed_over_replicas(tmp_path):
    """Each is loaded by one, and its stream outlives its process."""
    models = tmp_path / "models"
    models.mkdir()
    for name, part in (("large", "target"), ("small", "draft")):
        (models / name).symlink_to(bundled.target().parent / part)
    args = {"models": str(models), "replicas": 2, "models_memory": 4}
    path, url = file_of(tmp_path, "127.0.0.1", **args)
    with deployed(path, tmp_path / "log", FOREWORD_API_KEYS="key") as log:
        for ready in (lambda: BUILT in log(), lambda: is_ready(url)):
            wait_for(ready, "the server", log=tmp_path / "log")
        assert httpx.get(f"{url}/v1/models").status_code == 401
        listed = httpx.get(f"{url}/v1/models", headers=KEY).json()["data"]
        assert [one["id"] for one in listed] == ["large", "small"]
        for seed in range(6):
            for name in ("large", "small:ngram"):
                assert answer(url, name, seed)["model"] == name.partition(":")[0]
        text = httpx.get(f"{url}/metrics", headers=KEY).text
        lines = [one for one in text.splitlines() if "generation_tokens_total{" in one]
        holders = [one.split('"')[1].split("/") for one in lines]
        assert sorted(name for _, name, _ in holders) == ["large", "small"]
        assert len({replica for replica, *_ in holders}) == 2
        expected = stream(url, bool)
        assert stream(url, kill_models) == expected
        text = httpx.get(f"{url}/metrics", headers=KEY).text
        assert "\nforeword:requests_continued_total 1.0\n" in text
        wrong = {"model": "other", "messages": [user("Hi")]}
        refused = httpx.post(url + CHAT, json=wrong, headers=KEY)
        assert refused.status_code == 404, log()


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow
def test_address_beyond_the_machine_needs_a_key(tmp_path):
    path, url = file_of(tmp_path, "0.0.0.0")
    with deployed(path, tmp_path / "log", FOREWORD_API_KEYS="") as log:
        words = "cannot bind to 0.0.0.0 without an API key"
        wait_for(lambda: words in log(), "the error", log=tmp_path / "log")
        assert not is_ready(url)
