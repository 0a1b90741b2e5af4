"""`foreword index`: files become a datastore, or an error leaves nothing."""

import gzip
import json
import os
import re
import select
import signal
from threading import Thread, main_thread

import pytest

from asking import assistant, user
from foreword import bundled
from foreword.cli.common.progress import LineProgress
from foreword.draft.lookup.datastore import Datastore
from foreword.model import load_tokenizer

CHAT = {"messages": [user("Say hello."), assistant("Hello, world.")]}


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(bundled.target())


def lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def texts(store: Datastore, tokenizer) -> list[str]:
    """The corpus as text, read back."""
    rows: list[list[int]] = [[]]
    for token in store.tokens.tolist():
        if token == store.meta.separator:
            rows.append([])
        else:
            rows[-1].append(token)
    return [tokenizer.decode(row) for row in rows if row]


def test_files_of_every_kind_are_read(here, tokenizer):
    records = (
        CHAT,
        {"text": "A plain record."},
        {"prompt": "Say hello.", "completion": "Hello, world."},
        {"prompt": CHAT["messages"][:1], "completion": CHAT["messages"][1:]},
    )
    inside = here.folder / "corpus" / "deep"
    inside.mkdir(parents=True)
    (here.folder / "records.jsonl").write_text(lines(*records) + "\n", encoding="utf-8")
    with gzip.open(inside / "more.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(lines({"text": "Packed über alles."}))
    (inside / "code.py").write_text("x = 1\ny = 2\n")
    (inside / "picture.png").write_bytes(b"\x89PNG\0\0")
    (inside / ".secret").write_text("hidden")
    found = here("index", "records.jsonl", "corpus", "--out", "store", "--json")
    assert found.returncode == 0, found.stderr
    chat = tokenizer.apply_chat_template(CHAT["messages"], tokenize=False)
    store = Datastore(here.folder / "store", tokenizer)
    plain, code, packed = "A plain record.", "x = 1\ny = 2\n", "Packed über alles."
    wanted = [chat, plain, chat, chat, code, packed]
    assert texts(store, tokenizer) == wanted
    assert store.meta.sources == {
        "records.jsonl": 4,
        "corpus/deep/code.py": 1,
        "corpus/deep/more.jsonl.gz": 1,
    }
    said = json.loads(found.stdout)
    assert said["datastore"] == "store"
    assert (said["texts"], said["files"], said["skipped"]) == (6, 3, 1)
    assert said["tokens"] == store.meta.tokens
    written = (here.folder / "store").iterdir()
    assert said["bytes"] == sum(path.stat().st_size for path in written)
    assert "picture.png: it is not text" in found.stderr


def test_what_it_built_is_said_in_words_too(here):
    (here.folder / "words.txt").write_text("some words to look up")
    found = here("index", "words.txt", "-o", "store")
    assert found.returncode == 0, found.stderr
    assert re.search(r"^texts\s+1\s*$", found.stdout, re.MULTILINE)
    assert found.stderr == "", "no progress bar without a terminal"


def test_bars_are_for_people_at_a_terminal(here):
    (here.folder / "words.txt").write_text("some words to look up")
    shown = here("index", "words.txt", "-o", "store", FORCE_COLOR="1")
    assert "sorting" in shown.stderr
    facts = here("index", "words.txt", "-o", "other", "--json", FORCE_COLOR="1")
    assert facts.stderr == ""


def test_a_line_that_counts_moves_the_bar(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with LineProgress() as progress:
        progress("loading")
        progress("3 of 12: river")
    said = capsys.readouterr().err
    assert "loading" in said
    assert re.search(r"river .*3/12", said)
    monkeypatch.delenv("FORCE_COLOR")
    with LineProgress() as progress:
        progress("3 of 12: river")
    assert capsys.readouterr().err == "3 of 12: river\n"


def test_long_files_are_cut_at_the_ends_of_lines(tmp_path):
    from foreword.cli.index import PIECE, Corpus

    line = "0123456789" * 7 + "\n"
    long = tmp_path / "long.txt"
    long.write_text(line * (2 * PIECE // len(line)), encoding="utf-8")
    counts: list[int] = []
    pieces = [text for _, text in Corpus([long], None, counts.append)]
    assert len(pieces) == 2
    assert all(piece.endswith("\n") for piece in pieces)
    assert "".join(pieces) == long.read_text()
    assert sum(counts) == long.stat().st_size


def test_without_a_template_prompt_and_completion_join(tmp_path):
    from foreword.cli.index import Corpus
    from foreword.errors import InvalidRequest

    file = tmp_path / "records.jsonl"
    file.write_text(lines({"prompt": "Once upon", "completion": " a time"}))
    found = [text for _, text in Corpus([file], None, lambda read: None)]
    assert found == ["Once upon a time"]
    file.write_text(lines(CHAT))
    with pytest.raises(InvalidRequest, match="it is a chat, and the model has no"):
        list(Corpus([file], None, lambda read: None))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("nothing.txt", None, "cannot read nothing.txt: no such file or folder exists"),
        ("binary.bin", b"MZ\0\0", "cannot read binary.bin: it is not UTF-8 text"),
        ("latin.txt", "grün".encode("latin-1") * 2, "latin.txt: it is not UTF-8 text"),
        ("late.txt", b"a" * 9000 + b"\xff", "late.txt: it is not UTF-8 text"),
        ("packed.gz", b"not packed", "cannot read packed.gz: it is not UTF-8 text"),
        (
            "bad.jsonl",
            b'{"text": "a"}\n{"text": \n',
            "bad.jsonl, line 2: it is not JSON",
        ),
        ("odd.jsonl", b'{"colour": "blue"}\n', "odd.jsonl, line 1: unknown fields"),
        ("chat.jsonl", b'{"messages": [{"content": 1}]}\n', "line 1: it does not fit"),
        ("empty.txt", b"", "no text has two tokens"),
    ],
)
def test_what_cannot_be_read_is_said_and_nothing_is_left(here, name, content, words):
    if content is not None:
        (here.folder / name).write_bytes(content)
    found = here("index", name, "--out", "store")
    assert found.returncode == 2
    assert words in found.stderr
    assert found.stdout == ""
    assert "Traceback" not in found.stderr
    left = [path.name for path in here.folder.iterdir()]
    assert left == ([name] if content is not None else [])


def test_an_empty_folder_has_no_files(here):
    (here.folder / "corpus").mkdir()
    found = here("index", "corpus", "--out", "store")
    assert (found.returncode, found.stdout) == (2, "")
    assert "no text files in corpus" in found.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_named(here):
    (here.folder / "mine.txt").write_text("words")
    (here.folder / "mine.txt").chmod(0)
    found = here("index", "mine.txt", "--out", "store")
    assert found.returncode == 1
    assert "Permission denied: mine.txt" in found.stderr


def test_a_folder_that_exists_is_left_alone(here):
    (here.folder / "words.txt").write_text("some words")
    (here.folder / "store").mkdir()
    found = here("index", "words.txt", "--out", "store")
    assert found.returncode == 2
    assert "cannot create store: it exists already" in found.stderr
    assert list((here.folder / "store").iterdir()) == []


# Ctrl-C leaves the pipe to the garbage collection
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_build_leaves_nothing(here):
    os.mkfifo(here.folder / "pipe.txt")
    # with both ends open, no other end waits for one that opens or closes
    pipe = os.open(here.folder / "pipe.txt", os.O_RDWR)
    # the command looks at 8,192 bytes first: what is left, the build reads
    os.write(pipe, b"words " * 2000)

    def interrupt() -> None:
        """Interrupt the build that waits for the end of the pipe, then end that too."""
        while select.select([pipe], [], [], 0)[0]:
            os.sched_yield()
        signal.pthread_kill(main_thread().ident, signal.SIGINT)
        os.close(pipe)

    writer = Thread(target=interrupt)
    writer.start()
    found = here("index", "pipe.txt", "--out", "store")
    writer.join(60)
    assert found.returncode == 130
    assert [path.name for path in here.folder.iterdir()] == ["pipe.txt"]
