"""`foreword index`: input files and output of a datastore, for methods that draft from
your own texts.
"""

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

from foreword.cli.common import early, options, render, runtime
from foreword.errors import InvalidRequest

if TYPE_CHECKING:
    from foreword.draft.lookup.datastore import Meta

RECORDS, PACKED = (".jsonl", ".ndjson"), ".gz"
PIECE = 2**20
"""Characters. Plain files are cut into texts of about this size, at line ends."""
FORMATS = '{"messages": […]}, {"text": "…"} or {"prompt": …, "completion": …}'

Files = Annotated[
    list[Path], typer.Argument(help="JSONL, text or source files (.gz too); folders.")
]
Out = Annotated[
    Path,
    options.option(None, "--out -o", "New folder for the datastore.", "DIR", early.new),
]


def index(
    files: Files,
    *,
    out: Out,
    model: options.ModelName = None,
    trust_remote_code: options.TrustRemoteCode = False,
    as_json: options.AsJson = False,
) -> None:
    """Build a datastore from your own texts, for drafting by retrieval.

    A line of JSONL holds a text or a chat (messages, or prompt and completion), which
    is put into the model's chat template. The datastore is for the tokenizer of that
    model only. The folder appears when it is complete.
    """
    paths, skipped = collected(files)
    from foreword import bundled
    from foreword.draft.lookup.datastore import build
    from foreword.model import load_tokenizer

    trusted = {"trust_remote_code": True} if trust_remote_code else {}
    tokenizer = load_tokenizer(model or bundled.target(), **trusted)
    template = tokenizer.apply_chat_template if tokenizer.chat_template else None
    with render.bar(quiet=as_json, percent=True) as shown:
        reading = shown.add_task(
            "reading", total=sum(path.stat().st_size for path in paths)
        )
        sorting = shown.add_task("sorting", total=1.0)
        corpus = Corpus(
            paths, template, lambda read: shown.update(reading, advance=read)
        )
        meta = build(
            corpus,
            tokenizer,
            out,
            progress=lambda share: shown.update(sorting, completed=share),
        )
    for path in skipped:
        runtime.note(f"skipped {path}: it is not text")
    _write(out, meta, skipped, as_json)


def collected(files: list[Path]) -> tuple[list[Path], list[Path]]:
    """Return the text files, sorted by name within each folder, and the files of
    folders that are not text.

    Hidden files in folders are ignored. Raises InvalidRequest if a named file does not
    exist or is not text, or if no file is left; OSError if one cannot be read.
    """
    texts: list[Path] = []
    skipped: list[Path] = []
    for path in files:
        if not path.exists():
            raise InvalidRequest(
                f"cannot read {path}: no such file or folder exists. Give one that "
                "exists"
            )
        if not path.is_dir():
            if not _is_text(path):
                raise InvalidRequest(
                    f"cannot read {path}: it is not UTF-8 text. Give JSONL, plain text "
                    "or source files"
                )
            texts.append(path)
            continue
        inside = sorted(file for file in path.rglob("*") if file.is_file())
        for file in inside:
            if not any(part.startswith(".") for part in file.relative_to(path).parts):
                (texts if _is_text(file) else skipped).append(file)
    if not texts:
        raise InvalidRequest(
            f"cannot build a datastore: no text files in {', '.join(map(str, files))}. "
            "Give others"
        )
    return texts, skipped


@dataclass(frozen=True, slots=True)
class Corpus:
    """Lazily read (source, text) pairs of files.

    `template` renders a chat, with the signature of `apply_chat_template`; None if the
    model has none. `on_read` receives the number of bytes read since its last call.
    """

    files: list[Path]
    template: Callable[..., Any] | None
    on_read: Callable[[int], object]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        for path in self.files:
            with path.open("rb") as raw, _decoded(raw, path) as stream:
                read = 0
                for text in self._texts(path, stream):
                    yield str(path), text
                    self.on_read(raw.tell() - read)
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
            raise InvalidRequest(
                f"cannot read {path}: it is not UTF-8 text: {error.reason} at byte "
                f"{error.start}. Give UTF-8"
            ) from error

    def _record(self, line: str, where: str) -> str:
        """Return the text of one record; a chat is rendered in the template."""
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InvalidRequest(
                f"cannot read {where}: it is not JSON: {error}. Give {FORMATS}"
            ) from error
        match record:
            case {"messages": list(messages)}:
                return self._chat(messages, where)
            case {"text": str(text)}:
                return text
            case {"prompt": list(prompt), "completion": list(completion)}:
                return self._chat(prompt + completion, where)
            case {"prompt": str(prompt), "completion": str(completion)} if (
                self.template is None
            ):
                return prompt + completion
            case {"prompt": str(prompt), "completion": str(completion)}:
                return self._chat(
                    [
                        {"role": "user", "content": prompt},
                        {"role": "assistant", "content": completion},
                    ],
                    where,
                )
        raise InvalidRequest(f"cannot read {where}: unknown fields. Give {FORMATS}")

    def _chat(self, messages: list[Any], where: str) -> str:
        if self.template is None:
            raise InvalidRequest(
                f"cannot read {where}: it is a chat, and the model has no chat "
                "template. Give records with text"
            )
        try:
            return self.template(messages, tokenize=False)
        # a template is code of the model and may raise anything
        except Exception as error:
            raise InvalidRequest(
                f"cannot read {where}: it does not fit the model's chat template: "
                f"{error}. Give other messages"
            ) from error


def _decoded(raw: io.BufferedReader, path: Path) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        gzip.GzipFile(fileobj=raw) if path.name.lower().endswith(PACKED) else raw,
        encoding="utf-8",
    )


def _is_text(path: Path) -> bool:
    """Return whether the first 8,192 bytes of a file are UTF-8 text."""
    with path.open("rb") as raw:
        try:
            start = (
                gzip.GzipFile(fileobj=raw)
                if path.name.lower().endswith(PACKED)
                else raw
            ).read(8192)
            # a character may be cut off at the end
            codecs.getincrementaldecoder("utf-8")().decode(start)
        except (UnicodeDecodeError, gzip.BadGzipFile, EOFError):
            return False
    return b"\0" not in start


def _write(out: Path, meta: "Meta", skipped: list[Path], as_json: bool) -> None:
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
    render.facts(facts)
