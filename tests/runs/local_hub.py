"""A hub of Hugging Face on this machine: the few calls that publish, list and download
models, over real HTTP.
"""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from serving import Quiet, answering

COMMIT = "a" * 40
TOKEN = "hf_local"


@dataclass
class LocalHub:
    """The repositories of a hub, and the files that it sent."""

    address: str = ""
    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)

    def add(self, name: str, folder: Path) -> None:
        """Publish a folder as it is."""
        self.repos[name] = {path.name: path.read_bytes() for path in folder.iterdir()}

    def card(self, name: str) -> dict[str, Any]:
        """Return the values above the text of a card."""
        _, *parts = self.repos[name].get("README.md", b"").decode().split("---\n")
        return yaml.safe_load(parts[0]) if parts else {}

    def info(self, name: str) -> dict[str, Any]:
        """Return what the hub says about a repository."""
        card = self.card(name)
        files = self.repos[name].items()
        return {
            "id": name,
            "sha": COMMIT,
            "tags": [*card.get("tags", []), f"base_model:{card.get('base_model')}"],
            "siblings": [
                {"rfilename": file, "size": len(text)} for file, text in files
            ],
        }


class Handler(Quiet, BaseHTTPRequestHandler):
    """Answers the calls of `huggingface_hub`."""

    protocol_version = "HTTP/1.1"
    hub: LocalHub

    def do_GET(self) -> None:
        """List models, describe one, or send a file."""
        url, repos = urlsplit(self.path), self.hub.repos
        name = "/".join(url.path.split("/")[3:5])
        if url.path == "/":
            return self._reply()
        if url.path == "/api/models":
            tags = {*parse_qs(url.query)["filter"]}
            listed = [
                info for info in map(self.hub.info, repos) if tags <= {*info["tags"]}
            ]
            return self._reply(listed)
        if url.path.startswith("/api/models/") and "tree" not in url.path:
            return self._reply(self.hub.info(name))
        name, _, rest = url.path.strip("/").partition("/resolve/")
        file = rest.partition("/")[2]
        if (content := repos.get(name, {}).get(file)) is None:
            return self._reply(status=404, **{"X-Error-Code": "EntryNotFound"})
        self.hub.sent += [f"{name}/{file}"] * (self.command == "GET")
        etag = hashlib.sha256(content).hexdigest()
        return self._reply(content, ETag=f'"{etag}"', **{"X-Repo-Commit": COMMIT})

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def do_POST(self) -> None:
        """Create a repository, or take a commit; only with the token."""
        path = urlsplit(self.path).path
        body = self.rfile.read(int(self.headers["Content-Length"]))
        first, *lines = map(json.loads, body.splitlines())
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._reply(status=403)
        name = "/".join(path.split("/")[3:5])
        if path == "/api/repos/create":
            name = f"{first['organization']}/{first['name']}"
            if name in self.hub.repos:
                url = f"{self.hub.address}/{name}"
                return self._reply({"url": url}, status=409)
            self.hub.repos[name] = {}
        for file in (line["value"] for line in lines):
            self.hub.repos[name][file["path"]] = base64.b64decode(file["content"])
        mode = {"uploadMode": "regular", "shouldIgnore": False}
        url = f"{self.hub.address}/{name}"
        answer = {"url": url, "errors": [], "warnings": [], "success": True}
        answer |= {"commitOid": COMMIT, "commitUrl": f"{url}/commit/{COMMIT}"}
        answer |= {"files": [file | mode for file in first.get("files", [])]}
        return self._reply(answer)

    def _reply(self, content: object = b"", status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    """Run an empty hub."""
    hub = LocalHub()
    handler = type("BoundHandler", (Handler,), {"hub": hub})
    with answering(handler) as hub.address:
        yield hub
