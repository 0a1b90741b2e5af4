"""Files and batches of a server: OpenAI's `/v1/files` and `/v1/batches`."""

import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from foreword.errors import InvalidRequest
from foreword_server.batches.store import Store
from foreword_server.errors import ApiError
from foreword_server.settings import digest
from requested import CHAT, answers, begun, chat, content, ended, got, texts, uploaded
from serving import running

OTHERS = {
    "/v1/completions": {"prompt": "Define the word river.", "max_tokens": 8},
    "/v1/responses": {"input": "Say hello.", "max_output_tokens": 8},
    "/v1/messages": {
        "model": "foreword-family",
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 8,
    },
}


def test_batch_has_the_text_of_each_request_alone(server):
    requests = [chat(number) for number in range(6)]
    file = uploaded(server, *requests, chat(6, max_tokens=-3))
    assert (file["object"], file["purpose"]) == ("file", "batch")
    assert file["filename"] == "mine.jsonl"
    assert got(server, f"/v1/files/{file['id']}") == file
    begin = server.post(
        "/v1/batches",
        input_file_id=file["id"],
        endpoint=CHAT,
        completion_window="24h",
        metadata={"run": "7"},
    )
    assert (begin["status"], begin["object"]) == ("validating", "batch")
    batch = ended(server, begin)
    assert (batch["status"], batch["metadata"]) == ("completed", {"run": "7"})
    assert batch["request_counts"] == {"total": 7, "completed": 6, "failed": 1}
    assert batch["completed_at"] >= batch["in_progress_at"] >= batch["created_at"]
    found = answers(content(server, batch["output_file_id"]))
    for one in requests:
        alone = server.post(CHAT, **one["body"])
        body = found[one["custom_id"]]["body"]
        assert body["choices"] == alone["choices"]
        assert body["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"]
    metrics = [one["body"]["metrics"]["speculative_decoding"] for one in found.values()]
    assert sum(one["num_accepted_draft_tokens"] for one in metrics) > 0
    (failed,) = answers(content(server, batch["error_file_id"])).values()
    assert failed["status_code"] == 400
    assert "max_tokens" in failed["body"]["error"]["message"]


@pytest.mark.parametrize("url", OTHERS)
def test_every_endpoint_answers_a_file(server, url):
    request = {"custom_id": "x", "method": "POST", "url": url, "body": OTHERS[url]}
    batch = ended(server, begun(server, uploaded(server, request), url))
    (answer,) = answers(content(server, batch["output_file_id"])).values()
    assert answer["status_code"] == 200
    assert answer["body"]["usage"]
    assert batch["error_file_id"] is None


def test_file_with_faults_fails_before_any_answer(server):
    file = uploaded(server, chat(0), "{", {**chat(1), "url": "/v1/completions"})
    batch = ended(server, begun(server, file))
    assert (batch["status"], batch["output_file_id"]) == ("failed", None)
    found = [(one["line"], one["code"]) for one in batch["errors"]["data"]]
    assert found == [(2, "invalid_json_line"), (3, "invalid_url")]
    empty = ended(server, begun(server, uploaded(server, "")))
    assert empty["errors"]["data"][0]["message"] == "the file has no requests"


def test_cancelled_batch_keeps_the_answers_that_it_has(server):
    file = uploaded(server, *(chat(number, max_tokens=64) for number in range(80)))
    first, second = begun(server, file), begun(server, file)
    ended(server, first, least=1)
    used = server.http.delete(f"/v1/files/{file['id']}")
    assert used.status_code == 400
    assert "Cancel that first" in used.text
    second = server.post(f"/v1/batches/{second['id']}/cancel")
    assert got(server, f"/v1/batches/{first['id']}")["status"] == "in_progress"
    first = server.post(f"/v1/batches/{first['id']}/cancel")
    assert first["status"] == second["status"] == "cancelled"
    assert first["cancelling_at"]
    count = first["request_counts"]["completed"]
    assert 1 <= count < 80
    assert len(answers(content(server, first["output_file_id"]))) == count
    assert second["output_file_id"] is None
    again = server.http.post(f"/v1/batches/{first['id']}/cancel", json={})
    assert again.status_code == 400
    assert "it is cancelled" in again.text
    listed = got(server, "/v1/batches?limit=1")
    assert (len(listed["data"]), listed["has_more"]) == (1, True)
    rest = got(server, f"/v1/batches?after={listed['last_id']}")
    assert {listed["last_id"], rest["last_id"]} == {first["id"], second["id"]}
    assert server.http.delete(f"/v1/files/{file['id']}").json()["deleted"] is True
    assert server.http.get(f"/v1/files/{file['id']}").status_code == 404


@pytest.mark.slow
def test_batch_goes_on_after_a_restart(llm, tmp_path):
    requests = [chat(number, max_tokens=48) for number in range(60)]
    with running(llm, files=tmp_path) as server:
        batch = begun(server, uploaded(server, *requests))
        before = ended(server, batch, least=2)
        assert before["status"] == "in_progress"
    with running(llm, files=tmp_path) as server:
        batch = ended(server, batch)
        assert batch["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
        found = texts(content(server, batch["output_file_id"]))
        for one in (requests[0], requests[59]):
            alone = server.post(CHAT, **one["body"])["choices"][0]
            assert found[one["custom_id"]] == alone["message"]["content"]


def test_keys_see_their_own_files_only(llm, tmp_path):
    keys = frozenset(map(digest, ("one", "two")))
    with running(llm, files=tmp_path, keys=keys) as server:
        file = uploaded(server, chat(0), key="one")
        path = f"/v1/files/{file['id']}"
        codes = [
            server.http.get(path, headers={"x-api-key": key}).status_code
            for key in ("one", "two", "three")
        ]
        assert codes == [200, 404, 401]
        listed = server.http.get("/v1/files", headers={"x-api-key": "two"}).json()
        assert listed["data"] == []
        body = {"input_file_id": file["id"], "endpoint": CHAT}
        other = server.http.post("/v1/batches", json=body, headers={"x-api-key": "two"})
        assert other.status_code == 404


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint must be one of"),
        ({"completion_window": "1h"}, "completion_window must be '24h'"),
        ({"input_file_id": "file-" + "0" * 24}, "this key has no such one"),
        ({"input_file_id": "../tenant"}, "this key has no such one"),
        ({"input_file_id": 7}, "input_file_id"),
    ],
)
def test_batch_that_cannot_be_served_is_refused(server, change, said):
    body = {"input_file_id": uploaded(server, chat(0))["id"], "endpoint": CHAT}
    response = server.http.post("/v1/batches", json=body | change)
    assert response.status_code in (400, 404)
    assert said in response.json()["error"]["message"]


def test_uploads_that_cannot_be_kept_are_refused(llm, tmp_path):
    small, file = {"file": ("a", b"x")}, {"file": ("a", b"x" * 2000)}
    cases = [
        ({"data": {"purpose": "batch"}, "files": {"other": ("a", b"")}}, 400, "form"),
        ({"data": {"purpose": "vision"}, "files": small}, 400, "purpose must be"),
        ({"json": {}}, 400, "multipart/form-data"),
        ({"data": {"purpose": "batch"}, "files": file}, 413, "limit"),
    ]
    with running(llm, files=tmp_path, file=1000) as server:
        for request, status, said in cases:
            response = server.http.post("/v1/files", **request)
            assert response.status_code == status
            assert said in response.json()["error"]["message"]
        assert got(server, "/v1/files")["data"] == []
    with running(llm) as server:
        for path in ("/v1/files", "/v1/batches"):
            assert "--files DIR" in server.http.get(path).json()["error"]["message"]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_keeps_no_half_file(tmp_path):
    with closing(Store(tmp_path)) as store:
        full = pytest.raises(ApiError, match="Delete others")
        with files_of_at_most(500), full as error, store.scratch() as file:
            file.write(b"x" * 2000)
            store.add("", "a", "batch", file)
        assert error.value.status == 507
        assert store.all("", "file-") == []
    assert [path.name for path in tmp_path.glob("*/*")] == ["tenant"]


def test_batch_whose_end_cannot_be_kept_stops_no_other(server, tmp_path, caplog):
    long = [chat(number, max_tokens=64) for number in range(80)]
    before = begun(server, uploaded(server, *long))
    stuck = begun(server, uploaded(server, chat(0)))
    lost = begun(server, uploaded(server, chat(1)))
    after = begun(server, uploaded(server, chat(2)))
    (described,) = tmp_path.rglob(f"{stuck['id']}.json")
    # nothing can be written there
    described.with_name(f".{described.name}.partial").mkdir()
    described.with_name(f"{lost['id']}.jsonl").mkdir()
    server.post(f"/v1/batches/{before['id']}/cancel")
    assert ended(server, after)["status"] == "completed"
    said = str(got(server, f"/v1/batches/{lost['id']}")["errors"])
    assert f"cannot write {lost['id']}.jsonl: " in said
    assert str(tmp_path) not in said
    assert got(server, f"/v1/batches/{stuck['id']}")["status"] == "validating"
    assert f"batch {stuck['id']} stopped" in caplog.text


def test_two_servers_do_not_share_a_folder(tmp_path: Path):
    store = Store(tmp_path)
    with pytest.raises(InvalidRequest, match="another server does"):
        Store(tmp_path)
    store.close()
    Store(tmp_path).close()
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="Give a folder that can be written"):
        Store(tmp_path / "file")
