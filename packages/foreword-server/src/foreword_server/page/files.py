"""Static files of the page, and the file that shows recordings without a server."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from foreword.errors import InvalidRequest
from foreword.files import atomic_file, check_writable, room

STATIC = Path(__file__).parent / "static"
FOLDERS = (STATIC, STATIC / "chat", STATIC / "vendor")
"""The page; its chat; libraries of others, as they ship them (VERSIONS.md)."""
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
"""Media types by suffix."""
POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:"
"""Content-Security-Policy of both pages: nothing is loaded from elsewhere, and markup
in texts could do nothing.
"""
IMPORT = re.compile(r'^import \{[^}]*\} from "[./\w-]*?([\w-]+\.js)";\n', re.MULTILINE)
"""Names of modules are unique, whatever their folder."""
SERVED = re.compile(r"\n *<!--served-->.*?<!--/served-->", re.DOTALL)
"""Parts of the page that need a server."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One recording of a self-contained page: JSON (docs/formats/recordings.md)."""

    title: str
    recording: str
    plain: str | None = None
    """The same request without drafting, to race against."""


NAMES = tuple(
    sorted(
        path.relative_to(STATIC).as_posix()
        for path in STATIC.rglob("*")
        if path.suffix in TYPES and path.parent in FOLDERS
    )
)
"""Files that a server sends: these, and no other that the folders hold."""


def static_file(name: str) -> tuple[bytes, str] | None:
    """Return a file of the page and its media type; None if it has no such file."""
    if name not in NAMES:
        return None
    path = STATIC / name
    return path.read_bytes(), TYPES[path.suffix]


def self_contained(recordings: Iterable[Shown], title: str = "Foreword") -> str:
    """Return one HTML page with the recordings, style and script; it loads nothing."""
    style, script = _text("style.css"), _bundle()
    policy = f"{POLICY}; style-src {_hash(style)}; script-src {_hash(script)}"
    # The parser ends a script at "</script" only; in JSON, "<" may be written as an
    # escape everywhere.
    data = json.dumps([_entry(one) for one in recordings], ensure_ascii=False).replace(
        "<", "\\u003c"
    )
    page = SERVED.sub("", _text("index.html"))
    replaced = {
        '<meta charset="utf-8">': (
            '<meta charset="utf-8">\n    <meta http-equiv="Content-Security-Policy" '
            f'content="{policy}">'
        ),
        "<title>Foreword</title>": f"<title>{escape(title)}</title>",
        '<link rel="stylesheet" href="page/style.css">': f"<style>{style}</style>",
        '<script type="module" src="page/main.js"></script>': (
            f'<script type="application/json" id="recordings">{data}</script>\n'
            f'    <script type="module">{script}</script>'
        ),
    }
    for old, new in replaced.items():
        page = page.replace(old, new)
    return page


def write_self_contained(
    file: Path, recordings: Iterable[Shown], title: str = "Foreword"
) -> None:
    """Write a self-contained page; InvalidRequest if the file cannot be written."""
    check_writable(file)
    with room(file), atomic_file(file) as partial:
        partial.write_text(self_contained(recordings, title), encoding="utf-8")


def _entry(row: Shown) -> dict[str, Any]:
    plain = None if row.plain is None else json.loads(row.plain)
    return {"title": row.title, "recording": json.loads(row.recording), "plain": plain}


def _bundle() -> str:
    """Return all modules as one script: each after the modules that it imports, without
    imports and exports.
    """
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        text = _text(name)
        for imported in IMPORT.findall(text):
            add(imported)
        done[name] = re.sub(r"^export ", "", IMPORT.sub("", text), flags=re.MULTILINE)

    add("main.js")
    script = "\n".join(done.values())
    if "</script" in script or re.search(r"^(im|ex)port ", script, re.MULTILINE):
        raise InvalidRequest(
            "cannot join the modules of the page: one has an import or a tag that is "
            "not on one line"
        )
    return script


def _text(name: str) -> str:
    places = (folder / name for folder in FOLDERS)
    return next(filter(Path.is_file, places)).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return (
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
    )
