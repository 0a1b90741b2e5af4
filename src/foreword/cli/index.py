"""`foreword index`: a datastore of your texts, to guess from. Knows files and their formats, not how it is built."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foreword.cli import early, edge, options, show
from foreword.errors import InvalidRequest

if TYPE_CHECKING:
    from rich.progress import Progress

    from foreword.draft.datastore import Meta

RECORDS, PACKED = (".jsonl", ".ndjson"), ".gz"
PIECE = 2**20
"""Characters of a plain file that are taken as one text; longer files are cut at the ends of lines."""
FORMATS = '{"messages": […]}, {"text": "…"} or {"prompt": …, "completion": …}'

Files = Annotated[
    list[Path], typer.Argument(help="JSONL, plain text or source files, .gz too; folders with all in them.")
]
Out = Annotated[
    Path,
    typer.Option(
        "--out", "-o", help="New folder for the datastore.", metavar="DIR", callback=options.checked(early.new)
    ),
]


def index(
    files: Files,
    *,
    out: Out,
    model: options.ModelName = None,
    trust_remote_code: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Build a datastore of your own texts, for guessing what a model will say about such things.

    A line of JSONL holds a chat (messages, or prompt and completion), which is put into the model's chat template, or a
    text. The datastore is for one tokenizer: that of the model. The folder appears when it is complete.
    """
    found, skipped = collected(files)
    from foreword import family
    from foreword.draft.datastore import build
    from foreword.model import load_tokenizer

    trusted = {"trust_remote_code": True} if trust_remote_code else {}
    tokenizer = load_tokenizer(model or family.target(), **trusted)
    template = tokenizer.apply_chat_template if tokenizer.chat_template else None
    with _progress(quiet=as_json) as shown:
        reading = shown.add_task("reading", total=sum(path.stat().st_size for path in found))
        sorting = shown.add_task("sorting", total=1.0)
        corpus = Corpus(found, template, lambda read: shown.update(reading, advance=read))
        meta = build(corpus, tokenizer, out, progress=lambda share: shown.update(sorting, completed=share))
    for path in skipped:
        edge.note(f"{path} is not text and was left out")
    _write(out, meta, skipped, as_json)


def collected(files: list[Path]) -> tuple[list[Path], list[Path]]:
    """The files to read, those of folders in the order of their names, and those of folders that are not text.

    Hidden files in folders are passed over. Raises InvalidRequest where a named file does not exist or is not text, and
    where nothing is left; OSError where one cannot be read.
    """
    texts: list[Path] = []
    skipped: list[Path] = []
    for path in files:
        if not path.exists():
            raise InvalidRequest(f"there is no file or folder {path}")
        if not path.is_dir():
            if not _is_text(path):
                raise InvalidRequest(f"{path} is not UTF-8 text; give JSONL, plain text or source files")
            texts.append(path)
            continue
        inside = sorted(one for one in path.rglob("*") if one.is_file())
        for one in inside:
            if not any(part.startswith(".") for part in one.relative_to(path).parts):
                (texts if _is_text(one) else skipped).append(one)
    if not texts:
        raise InvalidRequest(f"there are no text files in {', '.join(map(str, files))}")
    return texts, skipped


@dataclass(frozen=True, slots=True)
class Corpus:
    """The (source, text) pairs of some files, read as they are asked for.

    `template` renders a chat as the model reads it, with the signature of `apply_chat_template`; None where the model
    has none. `heard` is told the bytes that were read.
    """

    files: list[Path]
    template: Callable[..., Any] | None
    heard: Callable[[int], object]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for path in self.files:
            with path.open("rb") as raw, _decoded(raw, path) as stream:
                read = 0
                for text in self._texts(path, stream):
                    yield str(path), text
                    self.heard(raw.tell() - read)
                    read = raw.tell()

    def _texts(self, path: Path, stream: io.TextIOWrapper) -> Iterator[str]:
        try:
            if not path.name.lower().removesuffix(PACKED).endswith(RECORDS):
                while piece := stream.read(PIECE) + stream.readline():
                    yield piece
                return
            for number, line in enumerate(stream, 1):
                if line.strip():
                    yield self._record(line, f"{path}, line {number}")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error

    def _record(self, line: str, where: str) -> str:
        """The text of one record, a chat as the model would read it."""
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InvalidRequest(f"{where} is not JSON: {error}") from error
        match record:
            case {"messages": list(messages)}:
                return self._chat(messages, where)
            case {"text": str(text)}:
                return text
            case {"prompt": list(asked), "completion": list(said)}:
                return self._chat(asked + said, where)
            case {"prompt": str(asked), "completion": str(said)} if self.template is None:
                return asked + said
            case {"prompt": str(asked), "completion": str(said)}:
                return self._chat([{"role": "user", "content": asked}, {"role": "assistant", "content": said}], where)
        raise InvalidRequest(f"{where} is none of {FORMATS}")

    def _chat(self, messages: list[Any], where: str) -> str:
        if self.template is None:
            raise InvalidRequest(f"{where} is a chat, and the model has no chat template; give records with text")
        try:
            return self.template(messages, tokenize=False)
        except Exception as error:  # a template is a program of the model's and raises what it likes
            raise InvalidRequest(f"{where} does not fit the model's chat template: {error}") from error


def _decoded(raw: io.BufferedReader, path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(gzip.GzipFile(fileobj=raw) if path.name.lower().endswith(PACKED) else raw, encoding="utf-8")


def _is_text(path: Path) -> bool:
    """Whether a file begins as UTF-8 text does."""
    with path.open("rb") as raw:
        try:
            start = (gzip.GzipFile(fileobj=raw) if path.name.lower().endswith(PACKED) else raw).read(8192)
            codecs.getincrementaldecoder("utf-8")().decode(start)  # a character may be cut off at the end
        except (UnicodeDecodeError, gzip.BadGzipFile, EOFError):
            return False
    return b"\0" not in start


def _progress(*, quiet: bool) -> Progress:
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    console = show.stderr()
    return Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)


def _write(out: Path, meta: Meta, skipped: list[Path], as_json: bool) -> None:
    size = sum(path.stat().st_size for path in out.iterdir())
    facts = {
        "datastore": str(out),
        "tokens": meta.tokens,
        "texts": sum(meta.sources.values()),
        "files": len(meta.sources),
        "skipped": len(skipped),
        "bytes": size,
    }
    if as_json:
        sys.stdout.write(json.dumps(facts) + "\n")
        return
    show.facts(facts)
