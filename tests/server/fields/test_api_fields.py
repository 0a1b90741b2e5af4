"""Every field of every API is honoured, refused by name, or harmless. References are
OpenAI's and Anthropic's clients, and api_fields.json for vLLM, SGLang and llama.cpp.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import message_create_params as messages
from anthropic.types.beta import message_create_params as beta
from openai.types import completion_create_params as completions
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as responses

from foreword_server.dialects.chat import ChatBody
from foreword_server.dialects.completions import CompletionBody
from foreword_server.dialects.constraints import GUIDED
from foreword_server.dialects.fields import Body
from foreword_server.dialects.messages import MessagesBody
from foreword_server.dialects.responses import ResponsesBody

LISTED = json.loads(
    Path(__file__).with_name("api_fields.json").read_text(encoding="utf-8")
)
APIS: dict[str, tuple[type[Body], tuple[Any, ...]]] = {
    "/v1/chat/completions": (ChatBody, (chat.CompletionCreateParamsBase,)),
    "/v1/completions": (CompletionBody, (completions.CompletionCreateParamsBase,)),
    "/v1/responses": (ResponsesBody, (responses.ResponseCreateParamsBase,)),
    "/v1/messages": (
        MessagesBody,
        (messages.MessageCreateParamsBase, beta.MessageCreateParamsBase),
    ),
}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}]},
}
EXTRA = {*GUIDED, "structured_outputs", "n_predict", "functions"}
"""Honoured, or refused in words of their own, without a field of the body."""


def reference(path: str) -> set[str]:
    """Return the names of all fields of an API."""
    _, types = APIS[path]
    fields = {name for kind in types for name in kind.__annotations__}
    return {*LISTED[path]["reference"]} | fields


@pytest.mark.parametrize("path", APIS)
def test_every_field_has_one_class(path):
    body, _ = APIS[path]
    honoured = {*body.model_fields} | EXTRA
    refused = {*body.REFUSED} - honoured
    harmless = {*LISTED[path]["harmless"]}
    assert harmless & (honoured | refused) == set()
    assert reference(path) - honoured - refused - harmless == set()
    assert harmless - reference(path) == set()


@pytest.mark.parametrize("path", APIS)
def test_harmless_fields_change_nothing_and_refused_ones_are_named(server, path):
    most = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    plain = ASKED[path] | {"temperature": 0, most: 6}
    body, _ = APIS[path]
    fields = {name: {"any": "value"} for name in LISTED[path]["harmless"]}
    answers = [server.post(path, **one) for one in (plain, plain | fields)]
    texts = [json.dumps(texts_of(answer)) for answer in answers]
    assert texts[0] == texts[1]
    for name in reference(path) & {*body.REFUSED} - {*body.model_fields} - EXTRA:
        found = server.http.post(path, json=plain | {name: {"any": "value"}})
        assert found.status_code == 400, name
        assert f"cannot honour {name!r}" in found.json()["error"]["message"]


def texts_of(answer: dict[str, Any]) -> list[Any]:
    """Return the texts of an answer of any API."""
    if "choices" in answer:
        return [one.get("text", one.get("message")) for one in answer["choices"]]
    parts = answer.get("output") or answer.get("content")
    return [part.get("text", part.get("content")) for part in parts]
