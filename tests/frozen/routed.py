"""Answers, whole and streamed, of a router in front of two replicas."""

import subprocess
import sys

import httpx2 as httpx

from frozen import http
from waiting import line_with

SERVE = "serve --port 0 --replicas 2 --device cpu --nodes 4"
NAMES = ("chat", "chat, a forced call", "messages", "responses", "messages, no limit")
"""Requests of `frozen.http`, one of each path and kind of answer."""


def record() -> dict[str, object]:
    """Return what the router answers."""
    words = [sys.executable, "-m", "foreword", *SERVE.split()]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as router:
        try:
            address = line_with(r"http://\S+?(?=/v1)", router)[0]
            with httpx.Client(base_url=address, timeout=120) as client:
                return {
                    name: http.exchange(client, *http.REQUESTS[name]) for name in NAMES
                }
        finally:
            router.terminate()
