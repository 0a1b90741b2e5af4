"""A drafter is published with a card, found by its target, and downloaded if asked."""

import io
import json
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from huggingface_hub import constants

import starter
from command import Shell
from foreword import LLM, SamplingParams, bundled
from foreword.cli.common.bundles import permitted
from foreword.draft.published import KNOWN, draft_for, find
from foreword.errors import ForewordError, InvalidRequest
from foreword.model.loading import hub
from foreword_train.hub import prepare, push
from foreword_train.report.metrics import Interval, Metrics, TrainReport
from local_hub import TOKEN, LocalHub, local_hub

TARGET, DRAFTER = "us/target", "us/drafter"


@pytest.fixture
def shared_hub(monkeypatch, tmp_path) -> Iterator[LocalHub]:
    """A hub for this process, whose clients know the endpoint of its beginning."""
    with local_hub() as made:
        files = f"{made.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", made.address)
        monkeypatch.setattr("transformers.utils.hub._hf_api", None, raising=False)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        hub._answers.cache_clear()
        yield made
    hub._answers.cache_clear()


@pytest.fixture
def folder(tmp_path) -> Path:
    """The bundled draft with a card, as a folder of its own."""
    made = shutil.copytree(starter.draft(), tmp_path / "draft")
    (made / "README.md").write_text("---\nlicense: mit\n---\n# A drafter\n")
    return made


def trained(target: str | None, **settings: object) -> TrainReport:
    """Return the report of a training."""
    middle = Interval(1.0, 2.0, 3.0)
    metrics = (Metrics("all", 0.0, 3, middle, (middle, middle)),)
    settings = {"method": "lm", "target": target, **settings}
    return TrainReport(target, settings, {"torch": "9"}, 12, 34, {}, metrics)


def test_a_published_drafter_is_found_and_drafts(shared_hub, folder):
    shared_hub.add(TARGET, starter.target())
    assert push(folder, DRAFTER, target=TARGET).endswith(f"/{DRAFTER}")
    sent = shared_hub.repos[DRAFTER]
    assert sent["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    values = shared_hub.card(DRAFTER)
    assert values.pop("tags") == ["speculative-decoding", "foreword", "lm"]
    assert set(values.values()) == {"mit", TARGET, "adapter", "foreword"}
    with pytest.warns(UserWarning, match=rf'found {DRAFTER} \(3 MB\).*draft="us'):
        assert LLM(TARGET, draft="auto", nodes=4).method == "ngram"
    assert not any(file.startswith(DRAFTER) for file in shared_hub.sent)
    LLM(TARGET, draft=DRAFTER)
    drafted = LLM(TARGET, draft="auto", nodes=4)
    assert drafted.method == "lm"
    plain = LLM(starter.target(), method="none")
    request = "The capital of France is", SamplingParams(temperature=0, max_tokens=16)
    answer = drafted.generate(*request)[0]
    assert answer.text == plain.generate(*request)[0].text
    assert answer.stats.accepted > 0
    shared_hub.repos.clear()
    assert draft_for(TARGET).is_dir(), "its card is in the cache"


@pytest.mark.slow
def test_commands_use_the_hub_of_the_environment(tmp_path, folder):
    with local_hub() as made:
        made.add(TARGET, starter.target())
        variables = {"HF_ENDPOINT": made.address, "HF_HOME": str(tmp_path)}
        variables |= {"HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN}
        run = partial(Shell(tmp_path), **variables)
        words = ("push", "draft", DRAFTER, "--base-model", TARGET)
        assert "Add '--yes'" in run(*words).stderr
        assert DRAFTER not in made.repos
        pushed = run(*words, "--yes").stdout
        assert "model.safetensors=2,952,560 bytes" in pushed
        assert pushed.endswith(f"/{DRAFTER}\n")
        words = ("generate", "Hi", "--model", TARGET, "--draft")
        assert run(*words, DRAFTER, "--nodes", "4").returncode == 0
        assert f"drafting with {DRAFTER}" in run(*words, "auto").stderr


@pytest.mark.parametrize(("typed", "expected"), [("y\n", DRAFTER), ("\n", None)])
def test_a_terminal_is_asked_before_a_download(
    typed, expected, shared_hub, folder, monkeypatch
):
    push(folder, DRAFTER, target=TARGET)
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert permitted(TARGET, "auto") == "auto"
    for stream in (sys.stdin, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    assert permitted(TARGET, "auto") == expected
    assert shared_hub.sent == []


def test_known_drafters_are_named_with_their_size(shared_hub, folder):
    target, drafter = next(iter(KNOWN.items()))
    shared_hub.add(drafter, folder)
    assert find(target) == (None, drafter, f"{drafter} (3 MB)")


def test_auto_without_a_drafter_says_why(shared_hub, monkeypatch, tmp_path):
    with pytest.warns(UserWarning, match="lists none for us/target"):
        assert draft_for(TARGET) is None
    with pytest.warns(UserWarning, match="is not a hub id"):
        assert draft_for(tmp_path) is None
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub._answers.cache_clear()
    with pytest.warns(UserWarning, match="does not answer"):
        assert draft_for(TARGET) is None


def test_auto_is_the_bundled_draft_or_a_folder(monkeypatch, tmp_path):
    assert draft_for(None) is None
    assert draft_for(bundled.target()) == bundled.draft()
    monkeypatch.chdir(tmp_path)
    Path("auto").mkdir()
    assert draft_for(None) == Path("auto")


def test_a_lost_card_is_written_again(folder):
    (folder / "README.md").unlink()
    report = trained("/home/me/target", seed=7)
    (folder / "report.json").write_text(json.dumps(report.as_json()))
    with pytest.raises(InvalidRequest, match="'/home/me/target' is not a hub id"):
        prepare(folder, DRAFTER)
    upload = prepare(folder, DRAFTER, target=TARGET)
    assert "report.json" not in upload.sizes
    for words in (f'LLM("{TARGET}", draft="{DRAFTER}")', "- seed: 7", "## Guarantee"):
        assert words in upload.card
    assert "/home/me" not in upload.card
    assert not (folder / "README.md").exists()


def test_a_folder_that_is_no_drafter_is_refused(folder):
    with pytest.raises(InvalidRequest, match="'nameless' is not a hub id"):
        prepare(folder, "nameless")
    with pytest.raises(InvalidRequest, match="it names no target"):
        prepare(folder, DRAFTER)
    layers = json.dumps(trained(None, method="layers").as_json())
    (folder / "report.json").write_text(layers)
    with pytest.raises(InvalidRequest, match="drafts itself"):
        prepare(folder, DRAFTER, target=TARGET)
    (folder / "report.json").unlink()
    reasons = {"README.md": "has no README.md", "model.safetensors": "or weights"}
    for name, reason in (reasons | {"config.json": "lacks config.json"}).items():
        (folder / name).unlink()
        with pytest.raises(InvalidRequest, match=reason):
            prepare(folder, DRAFTER, target=TARGET)


def test_a_failed_push_says_what_to_do(shared_hub, folder, monkeypatch):
    def refused(**options: bool) -> str:
        hub._answers.cache_clear()
        with pytest.raises(ForewordError, match="cannot push") as caught:
            push(folder, DRAFTER, target=TARGET, **options)
        return str(caught.value)

    shared_hub.repos[DRAFTER] = {}
    assert "that a private one is new" in refused(private=True)
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    assert "your token may write to us/drafter" in refused()
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nowhere")
    monkeypatch.delenv("HF_TOKEN")
    assert "hf auth login" in refused()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "does not answer" in refused()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "Unset HF_HUB_OFFLINE" in refused()
    assert shared_hub.repos[DRAFTER] == {}
