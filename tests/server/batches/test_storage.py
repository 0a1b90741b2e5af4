"""Files on file systems of fsspec: written whole, part by part, and gone on with."""

import json
import tempfile

import fsspec
import pytest

from foreword.errors import ForewordError, InvalidRequest
from foreword_server.batches import copies
from foreword_server.batches.lines import RequestFile
from foreword_server.batches.parts import StoredAnswers
from foreword_server.batches.results import Response, ResultFile
from foreword_server.batches.storage import RemoteFolder
from foreword_server.batches.store import Store
from foreword_server.settings import Settings
from requested import (
    CHAT,
    answers,
    begun,
    chat,
    content,
    ended,
    got,
    texts,
    uploaded,
    written,
)
from serving import running

GOOD = Response(200, "req_1", {"usage": {"completion_tokens": 3}})
BAD = Response(400, "req_2", {"error": {"message": "no"}})


@pytest.fixture(params=["memory", "local"])
def url(request, tmp_path):
    """A folder of a file system of fsspec."""
    if request.param == "local":
        (tmp_path / "store").mkdir()
        yield f"local://{tmp_path}/store"
        return
    yield "memory://store"
    fsspec.filesystem("memory").store.clear()


def names(url):
    return RemoteFolder(url).names()


def text(url):
    with fsspec.open(url, "r") as file:
        return file.read()


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_command_answers_a_url_once(here, url):
    written(here.folder / "in.jsonl", chat(0), chat(1, n=5), chat(2, temperature=-1))
    fsspec.filesystem(url.partition(":")[0]).put_file(
        str(here.folder / "in.jsonl"), f"{url}/in.jsonl".partition("://")[2]
    )
    words = ("batch", f"{url}/in.jsonl", f"{url}/out.jsonl", "--slots", "1", "--json")
    ended = here(*words)
    assert ended.returncode == 1, ended.stderr
    assert names(url) == ["in.jsonl", "out.jsonl"]
    first = answers(text(f"{url}/out.jsonl"))
    written(here.folder / "in.jsonl", chat(0), chat(1, n=5), chat(2))
    ended = here("batch", "in.jsonl", *words[2:])
    assert json.loads(ended.stdout)["kept"] == 2
    second = answers(text(f"{url}/out.jsonl"))
    assert second["c0"] == first["c0"]
    assert len(texts(text(f"{url}/out.jsonl"))) == 3


def test_answers_of_a_killed_run_are_gone_on_with(tmp_path, url):
    lines = RequestFile(written(tmp_path / "in", *map(chat, range(5)))).lines
    folder = RemoteFolder(url)
    killed = StoredAnswers(folder, "out", tmp_path / "killed")
    killed.fetch()
    with ResultFile(tmp_path / "killed") as results:
        killed._end = 0
        for line, response in zip(lines, (GOOD, BAD, GOOD), strict=False):
            results.write(line, response)
            killed.store()
        results.write(lines[3], GOOD)  # not stored: lost
    cut = folder.read(killed._parts[-1])
    folder.write("out.part-0", cut[: len(cut) // 2])  # a file system cut it
    path = tmp_path / "again"
    again = StoredAnswers(folder, "out", path)
    again.fetch()
    with ResultFile(path) as results:
        assert results.resume(lines) == {"c0", "c2"}
        failures = []
        with again.storing(failures.append):
            for number in (1, 3):
                results.write(lines[number], GOOD)
        third = StoredAnswers(folder, "out", tmp_path / "third")
        third.fetch()
        results.write(lines[4], GOOD)
    with ResultFile(tmp_path / "third") as results:
        assert results.resume(lines) == {"c0", "c1", "c2", "c3"}
    again.finish()
    assert names(url) == ["out"]
    assert set(answers(text(f"{url}/out"))) == {f"c{number}" for number in range(5)}
    assert failures == []


def test_answers_that_cannot_be_stored_stay_on_this_machine(tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()

    def run() -> None:
        url = f"local://{tmp_path}/store/out"
        with copies.local_copies("in", url) as (_, local, _):
            local.write_text("an answer\n")
            (tmp_path / "store").rmdir()

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with pytest.raises(ForewordError, match="All answers are in ") as error:
        run()
    (kept,) = tmp_path.glob("foreword-batch-*/answers.jsonl")
    assert kept.read_text() == "an answer\n"
    assert str(kept) in str(error.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nothing://a/b", "Give a URL that fsspec opens"),
        ("local:///none/in.jsonl", "cannot read local:///none/in.jsonl: FileNotFound"),
    ],
)
def test_url_that_cannot_be_read_is_named(url, said):
    with pytest.raises(ForewordError, match=said), copies.local_copies(url, "out"):
        pass


def test_answers_are_refused_before_the_model_where_they_cannot_be_stored(here):
    written(here.folder / "in.jsonl", chat(0))
    ended = here("batch", "in.jsonl", "local:///none/out.jsonl", "-m", "no/model")
    assert "cannot write local:///none/out.jsonl" in ended.stderr


def test_file_that_is_not_answers_is_not_touched(here, url):
    RemoteFolder(url).write("out", b"a diary\n")
    written(here.folder / "in.jsonl", chat(0))
    ended = here("batch", "in.jsonl", f"{url}/out")
    assert f"cannot continue {url}/out: it holds something else" in ended.stderr
    assert text(f"{url}/out") == "a diary\n"
    assert names(url) == ["out"]


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Give the next server a machine without files."""

    def new(name):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))

    return new


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_batch_goes_on_on_another_machine(llm, url, machine):
    machine("first")
    requests = [chat(0), chat(1)]
    requests += [chat(n, max_tokens=160, ignore_eos=True) for n in range(2, 16)]
    with running(llm, files=url) as server:
        batch = begun(server, uploaded(server, *requests))
        before = ended(server, batch, least=2)
        assert before["status"] == "in_progress"
    parts = [name for name in names(url) if ".part-" in name]
    kept = "".join(text(f"{url}/{name}") for name in parts).splitlines()
    assert len(kept) >= 2
    machine("second")
    with running(llm, files=url) as server:
        batch = ended(server, batch)
        assert batch["request_counts"] == {"total": 16, "completed": 16, "failed": 0}
        found = content(server, batch["output_file_id"])
        assert len(texts(found)) == 16
        assert set(kept) <= set(found.splitlines())
    machine("third")
    with running(llm, files=url) as server:
        assert content(server, batch["output_file_id"]) == found
        for one in got(server, "/v1/files")["data"]:
            assert server.http.delete(f"/v1/files/{one['id']}").json()["deleted"]
    left = {name.partition(".")[2] for name in names(url)}
    assert left == {"", "tenant", f"{batch['id']}.json"}
    machine("third")
    with running(llm, files=url) as server:
        assert got(server, "/v1/files")["data"] == []


def test_upload_that_cannot_be_stored_is_refused(llm, tmp_path, machine, caplog):
    machine("here")
    (tmp_path / "store").mkdir()
    url = f"local://{tmp_path}/store"
    with running(llm, files=url) as server:
        file = uploaded(server, chat(0))
        (tmp_path / "store").rename(tmp_path / "away")
        refused = server.http.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": ("a", b"x")}
        )
        assert refused.status_code == 503
        assert "store" not in refused.text.replace("storage", "")
        order = {"input_file_id": file["id"], "endpoint": CHAT}
        assert server.http.post("/v1/batches", json=order).status_code == 503
        assert [one["id"] for one in got(server, "/v1/files")["data"]] == [file["id"]]
        assert got(server, "/v1/batches")["data"] == []
        (tmp_path / "away").rename(tmp_path / "store")
        assert ended(server, begun(server, file))["status"] == "completed"
    assert f"cannot write {url}" in caplog.text
    machine("there")
    with pytest.raises(InvalidRequest, match="cannot write local:///none/server"):
        Store.of(Settings(files="local:///none"))
