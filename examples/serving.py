"""Serve the bundled models in this process, and use them as any client would: one
request plain, one with drafts.

pip install 'foreword[serve]'
python examples/serving.py
"""

import json
import threading
import urllib.request

import uvicorn

from foreword import LLM
from foreword_server.app import build_app
from foreword_server.run import bound
from foreword_server.service import Service
from foreword_server.settings import Settings

service = Service(LLM(), Settings(port=0), bundled=True)
listener = bound(service.settings)
listener.listen()  # requests wait in the socket until the server runs
server = uvicorn.Server(uvicorn.Config(build_app(service), log_level="warning"))
(thread := threading.Thread(target=server.run, kwargs={"sockets": [listener]})).start()
url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/chat/completions"


def ask(model: str) -> dict:
    """Send one request with a seed."""
    messages = [
        {
            "role": "user",
            "content": "Summarise: The river rose, and the miller moved his grain.",
        }
    ]
    body = json.dumps(
        {"model": model, "messages": messages, "seed": 7, "max_tokens": 40}
    ).encode()
    with urllib.request.urlopen(
        urllib.request.Request(url, body, {"content-type": "application/json"})
    ) as response:
        return json.load(response)


plain, drafted = ask(f"{service.name}:none"), ask(service.name)
text = drafted["choices"][0]["message"]["content"]
print("the same text as plain:", text == plain["choices"][0]["message"]["content"])
print(text, "draft tokens accepted:", drafted["timings"]["draft_n_accepted"])
server.should_exit = True
thread.join()
