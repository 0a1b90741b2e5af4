"""Records are read, or refused with file and line, and held out by source."""

import gzip
import json
from collections import Counter

import pytest

from asking import assistant, user
from foreword.errors import InvalidRequest
from foreword_train.data.records import Record, read, split

CHAT = {"messages": [user("Hi"), assistant("Hello")], "source": "greetings"}


def written(folder, *lines: str, name: str = "data.jsonl"):
    path = folder / name
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["data.jsonl", "data.jsonl.gz"])
def test_chats_and_texts_are_read_in_order(tmp_path, name):
    text = '{"text": "Once", "cut": true, "id": 7}'
    path = written(tmp_path, json.dumps(CHAT), "", text, name=name)
    chat = Record(turns=(("user", "Hi"), ("assistant", "Hello")), source="greetings")
    assert read([path, path]) == [chat, Record(text="Once", cut=True)] * 2


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "not JSON"),
        ("7", "is not a record"),
        ('{"prompt": "x"}', "is not a record"),
        ('{"text": "x", "messages": []}', "is not a record"),
        ('{"text": " "}', "not empty"),
        ('{"text": 5}', "'text' must be a string"),
        ('{"text": "x", "source": 3}', "'source' must be a string"),
        ('{"messages": []}', "one or more"),
        ('{"messages": [{"role": "user"}]}', "1 must have 'role' and 'content'"),
        ('{"messages": [{"role": "user", "content": "x"}, "y"]}', "message 2"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "turn of the assistant"),
    ],
)
def test_bad_record_is_named_by_file_and_line(tmp_path, line, says):
    path = written(tmp_path, json.dumps(CHAT), "", line)
    with pytest.raises(InvalidRequest, match=says) as error:
        read([path])
    words = (f"cannot read {path}:3: ", f"cannot train on {path}:3: ")
    assert str(error.value).startswith(words)


def test_unanswered_records_can_be_read(tmp_path):
    path = written(tmp_path, '{"messages": [{"role": "user", "content": "x"}]}')
    assert read([path], answered=False) == [Record(turns=(("user", "x"),))]


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="no such file exists"):
        read([tmp_path / "nothing.jsonl"])
    with pytest.raises(InvalidRequest, match="there are no records"):
        read([written(tmp_path, "")])
    broken = tmp_path / "broken.jsonl"
    broken.write_bytes(b'{"text": "\xff"}\n')
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        read([broken])
    cut = written(tmp_path, json.dumps(CHAT), name="cut.jsonl.gz")
    cut.write_bytes(cut.read_bytes()[:-9])
    with pytest.raises(InvalidRequest, match="not a complete gzip file"):
        read([cut])


RECORDS = [
    Record(text=f"{source} {number // 2}", source=source)
    for source in "ab"
    for number in range(100)
]
"""Every text occurs twice."""


def test_every_source_is_held_out_by_opening():
    learnt, held_out = split(RECORDS, 20)
    assert Counter(record.source for record in held_out) == {"a": 10, "b": 10}
    assert len(learnt) + len(held_out) == len(RECORDS)
    openings = [{record.opening for record in part} for part in (learnt, held_out)]
    assert openings[0] & openings[1] == set()


def test_split_follows_seed_and_contents():
    held_out = split(RECORDS, 20)[1]
    turned = split(RECORDS[::-1], 20)[1]
    assert sorted(map(str, turned)) == sorted(map(str, held_out))
    assert split(RECORDS, 20, seed=1)[1] != held_out


def test_held_out_records_are_limited():
    many = [Record(text=str(number), source=str(number // 2)) for number in range(100)]
    assert len(split(many, 10)[1]) == 10
    same = [Record(text="same")] * 50
    assert len(split([*same, *(Record(text=str(n)) for n in range(50))], 10)[1]) <= 10


def test_source_is_never_held_out_whole():
    few = [Record(text=str(number), source="x") for number in range(3)]
    learnt, held_out = split(few, 50)
    assert (len(learnt), len(held_out)) == (1, 2)
    assert split(RECORDS, 0) == (RECORDS, [])
