"""Every line of a file of requests is checked before any is answered."""

import json
import resource

import pytest

from foreword.errors import ForewordError, InvalidRequest
from foreword_server.batches.lines import RequestFile
from foreword_server.batches.results import Response, ResultFile
from requested import CHAT, chat, written

GOOD = Response(200, "req_1", {"usage": {"completion_tokens": 3}, "text": "a\nb"})
BAD = Response(400, "req_2", {"error": {"message": "no"}})
LINES = [
    ("{", "invalid_json_line", "it is not JSON"),
    ("[1]", "invalid_json_line", "it is not a JSON object"),
    ({**chat(1), "custom_id": 7}, "invalid_custom_id", "a text of 1 to 512"),
    ({**chat(1), "custom_id": "x" * 513}, "invalid_custom_id", "a text of 1 to 512"),
    ({**chat(1), "method": "GET"}, "invalid_method", "'GET', and must be POST"),
    ({**chat(1), "url": "/v1/embeddings"}, "invalid_url", "'/v1/embeddings', and"),
    ({**chat(1), "url": ["/"]}, "invalid_url", "and must be"),
    ({**chat(1), "body": None}, "missing_body", "body must be a JSON object"),
    (chat(1, stream=True), "invalid_body", "cannot be a stream"),
    (chat(0), "duplicate_custom_id", "another line has the custom_id 'c0'"),
]


@pytest.mark.parametrize(("line", "code", "said"), LINES)
def test_line_that_cannot_be_read_is_named(tmp_path, line, code, said):
    read = RequestFile(written(tmp_path / "in", chat(0), "", line, chat(2)))
    assert [one.custom_id for one in read.lines] == ["c0", "c2"]
    (fault,) = read.faults
    assert (fault.line, fault.code) == (3, code)
    assert said in fault.message
    with pytest.raises(InvalidRequest, match=r"line 3: .*nothing has begun"):
        read.check()


def test_first_faults_are_named_and_the_others_counted(tmp_path):
    read = RequestFile(written(tmp_path / "in", *["{"] * 5))
    with pytest.raises(InvalidRequest, match=r"line 1: .*line 3: .*and 2 more lines"):
        read.check()


def test_file_without_requests_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="it has no requests"):
        RequestFile(written(tmp_path / "in", "", " ")).check()


def test_another_endpoint_is_a_fault(tmp_path):
    path = written(tmp_path / "in", chat(0))
    assert not RequestFile(path, CHAT).faults
    (fault,) = RequestFile(path, "/v1/completions").faults
    assert fault.code == "invalid_url"


def test_bodies_are_read_from_their_place(tmp_path):
    requests = [chat(0, user="é\n"), chat(1), chat(2, user="end")]
    path = tmp_path / "in"
    text = json.dumps(requests[0], ensure_ascii=False) + "\r\n\n"
    text += "\n".join(json.dumps(one) for one in requests[1:])  # no last line end
    path.write_bytes(text.encode())
    read = RequestFile(path)
    assert [read.body(line) for line in read.lines] == [one["body"] for one in requests]


def test_equal_requests_have_equal_ids_and_others_do_not(tmp_path):
    same = {"body": chat(0)["body"], "url": CHAT, "custom_id": "again"}
    first, second, third = RequestFile(
        written(tmp_path / "in", chat(0), same, chat(1))
    ).lines
    assert first.id == second.id != third.id


@pytest.fixture
def lines(tmp_path):
    return RequestFile(written(tmp_path / "in", chat(0), chat(1), chat(2))).lines


def test_file_of_answers_goes_on_where_it_was_left(tmp_path, lines):
    path = tmp_path / "out"
    with ResultFile(path) as results:
        assert results.resume(lines) == set()
        results.write(lines[0], GOOD)
        results.write(lines[1], BAD)
        assert (results.counts.completed, results.counts.failed) == (1, 1)
        assert results.counts.tokens == 3
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 3])  # a kill cut a line
    with ResultFile(path) as results:
        assert results.resume(lines) == {"c0"}
        results.write(lines[1], GOOD)
        results.write(lines[2], GOOD)
    found = [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]
    assert found == ["c0", "c1", "c2"]


def test_answers_to_other_requests_are_not_touched(tmp_path, lines):
    path = tmp_path / "out"
    with ResultFile(path) as results:
        results.write(lines[0], GOOD)
    before = path.read_bytes()
    other = RequestFile(written(tmp_path / "other", chat(0, max_tokens=5))).lines
    with (
        ResultFile(path) as results,
        pytest.raises(InvalidRequest, match="another req"),
    ):
        results.resume(other)
    assert path.read_bytes() == before
    path.write_text("a diary\n")
    with (
        ResultFile(path) as results,
        pytest.raises(InvalidRequest, match="something el"),
    ):
        results.resume(lines)
    assert path.read_text() == "a diary\n"


def test_two_programs_do_not_write_one_file(tmp_path):
    with (
        ResultFile(tmp_path / "out"),
        pytest.raises(InvalidRequest, match="another program writes it"),
        ResultFile(tmp_path / "out"),
    ):
        pass


def test_place_that_cannot_be_written_is_refused(tmp_path):
    with (
        pytest.raises(InvalidRequest, match="No such file or directory"),
        ResultFile(tmp_path / "none" / "out"),
    ):
        pass


def test_full_disk_keeps_the_answers_before(lines, tmp_path):
    path = tmp_path / "out"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ResultFile(path) as results:
        results.write(lines[0], GOOD)
        size = path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
        try:
            with pytest.raises(ForewordError, match="1 answers are kept: run the same"):
                results.write(lines[1], GOOD)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.stat().st_size == size
    with ResultFile(path) as results:
        assert results.resume(lines) == {"c0"}
