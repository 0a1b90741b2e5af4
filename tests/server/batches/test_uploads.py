"""What one key may send and keep: its time, its bytes, and how long files stay."""

import socket

import pytest

from folders import edit
from foreword_server import body
from foreword_server.batches import store
from foreword_server.settings import digest
from requested import CHAT, begun, chat, content, ended, got, uploaded
from serving import Running, running

HEAD = (
    "POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 900000\r\n"
    "content-type: multipart/form-data; boundary=xx\r\n\r\n--xx\r\n"
    'content-disposition: form-data; name="file"; filename="a"\r\n\r\n'
)


def begun_upload(server: Running) -> socket.socket:
    """Return a connection that has sent a part of a file."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall(HEAD.encode() + b"a" * 300_000)
    return connection


def test_slow_upload_is_ended(server, monkeypatch):
    monkeypatch.setattr(body, "READ_SECONDS", 0.1)
    with begun_upload(server) as connection:
        assert connection.recv(12) == b"HTTP/1.1 408"


def test_upload_is_on_disk_as_it_arrives_and_takes_no_memory_of_others(
    server, tmp_path
):
    server.service.limits.bytes = 1000

    def sizes() -> list[int]:
        assert server.post(CHAT, **chat(0, max_tokens=1)["body"])
        return [path.stat().st_size for path in tmp_path.glob("files/.arriving/*")]

    with begun_upload(server):
        while sum(sizes()) < 250_000:
            pass  # each look is a request of another client, which is answered
    while sizes():
        pass  # the client left
    long = chat(0, user="a" * 1000)["body"]
    assert server.http.post(CHAT, json=long).status_code == 429


def upload(server: Running, size: int, key: str, **form: str) -> tuple[int, str]:
    """Return the status and the error of an upload."""
    response = server.http.post(
        "/v1/files",
        data={"purpose": "batch"} | form,
        files={"file": ("a", b"x" * size)},
        headers={"x-api-key": key},
    )
    return response.status_code, response.json().get("error", {}).get("message", "")


def test_key_that_keeps_too_much_is_refused_and_others_are_not(
    llm, tmp_path, monkeypatch
):
    monkeypatch.setattr(store, "MOST_FILES", 3)
    keys = frozenset(map(digest, ("one", "two")))
    with running(llm, files=tmp_path, keys=keys, stored=3000) as server:
        assert [upload(server, 1000, "one")[0] for _ in range(2)] == [200, 200]
        status, said = upload(server, 1001, "one")
        assert status == 413
        assert "cannot keep more for this key: it has 2 files of 3" in said
        assert [upload(server, 1, "two")[0] for _ in range(4)] == [200] * 3 + [413]
        headers = {"x-api-key": "one"}
        (first, _) = server.http.get("/v1/files", headers=headers).json()["data"]
        path = f"/v1/files/{first['id']}"
        assert server.http.delete(path, headers=headers).json()["deleted"]
        assert upload(server, 1000, "one")[0] == 200


def test_key_has_few_batches_that_wait(llm, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "MOST_BATCHES", 2)
    with running(llm, files=tmp_path, batches=1) as server:
        check_few_wait(server)


def check_few_wait(server: Running) -> None:
    file = uploaded(server, *(chat(number, max_tokens=64) for number in range(40)))
    first = begun(server, file)
    order = {"input_file_id": file["id"], "endpoint": CHAT}
    refused = server.http.post("/v1/batches", json=order)
    assert refused.status_code == 429
    assert (
        "1 of this key have not ended ('--max-batches')"
        in refused.json()["error"]["message"]
    )
    later = [first]
    for _ in range(2):
        server.post(f"/v1/batches/{later[-1]['id']}/cancel")
        later.append(begun(server, file))
    kept = {one["id"] for one in got(server, "/v1/batches")["data"]}
    assert kept == {one["id"] for one in later[1:]}


@pytest.mark.parametrize("seconds", ["60", "9999999", "soon"])
def test_time_of_a_file_that_is_not_offered_is_refused(server, seconds):
    form = {"expires_after[anchor]": "created_at", "expires_after[seconds]": seconds}
    status, said = upload(server, 1, "", **form)
    assert status == 400
    assert "expires_after must be 3600 to 2592000 seconds" in said


def test_files_and_batches_expire_and_a_damaged_one_stops_no_start(
    llm, tmp_path, caplog
):
    with running(llm, files=tmp_path) as server:
        hour = {"anchor": "created_at", "seconds": 3600}
        files = [uploaded(server, chat(number)) for number in range(3)]
        order = {"input_file_id": files[0]["id"], "endpoint": CHAT}
        batch = server.post("/v1/batches", **order, output_expires_after=hour)
        output = ended(server, batch)["output_file_id"]
        about = got(server, f"/v1/files/{output}")
        assert about["expires_at"] - about["created_at"] == 3600
        assert files[0]["expires_at"] - files[0]["created_at"] == 30 * 24 * 3600
        modes = {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
        assert modes == {0o600, 0o700}
        (folder,) = (path.parent for path in tmp_path.glob("*/tenant"))
        edit(folder / f"{files[0]['id']}.json", expires_at=1)
        edit(folder / f"{batch['id']}.json", completed_at=1)
        damaged = folder / f"{files[1]['id']}.json"
        damaged.write_text(damaged.read_text()[:20])
        assert len(got(server, "/v1/files")["data"]) == 4
    with running(llm, files=tmp_path) as server:
        left = {one["id"] for one in got(server, "/v1/files")["data"]}
        assert left == {files[2]["id"], output}
        assert got(server, "/v1/batches")["data"] == []
        assert content(server, output)
    assert f"cannot read {damaged}" in caplog.text
    assert damaged.with_suffix(".damaged").exists()
    assert not (folder / f"{files[0]['id']}.jsonl").exists()
