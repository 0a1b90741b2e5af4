"""Senseless requests get an error in the shape of their API; the server goes on."""

import json

import pytest

from asking import user

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
ASK = [user("Define the word river.")]
RESULT = [user([{"type": "tool_result", "tool_use_id": "a", "content": 5}])]
GET = [{"name": "get", "input_schema": {"type": "object"}}]
NAMELESS = [{"type": "function", "name": ["a"], "parameters": {}}]


JSON_YES = {"structured_outputs": {"json_object": "yes"}}
FORM = {"format": "json"}
AUTO = {"tools": GET, "tool_choice": {"type": ["auto"]}}


def asked(**fields):
    return {"messages": ASK, **fields}


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (CHAT, b"{", "cannot read"),
        (CHAT, b"\xff\xfe", "cannot read"),
        (CHAT, b'{"messages": NaN}', "messages"),
        (CHAT, b"[" * 5000, "cannot read"),
        (CHAT, {}, "messages"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": [user("x") | {"role": ["u"]}]}, "['u'] is unknown"),
        (CHAT, {"messages": [user("x") | {"role": "wizard"}]}, "'wizard' is unknown"),
        (CHAT, asked(max_tokens=-2), "max_tokens"),
        (CHAT, asked(max_tokens=0), "max_tokens"),
        (CHAT, asked(temperature=1e400), "temperature"),
        (CHAT, asked(temperature=-1), "temperature"),
        (CHAT, asked(seed=2**70), "seed"),
        (CHAT, asked(n=10**9), "n"),
        (CHAT, asked(speculative={"method": "magic"}), "magic"),
        (CHAT, asked(speculative={"depth": 3}), "depth"),
        (CHAT, asked(response_format={"type": "json_schema"}), "json_schema"),
        (CHAT, {"messages": [user("\ud800")]}, "the lone surrogate '\\ud800'"),
        (TEXT, {"prompt": "\ud800"}, "prompt must be valid Unicode"),
        (TEXT, {"prompt": ["a", "b\udfff"]}, "the lone surrogate '\\udfff'"),
        ("/tokenize", {"prompt": "\ud800"}, "prompt must be valid Unicode"),
        (TEXT, {"prompt": "a", "guided_regex": [1]}, "regex must be None or a text"),
        (TEXT, {"prompt": "a", "guided_json": [1]}, "must be a JSON object"),
        (TEXT, {"prompt": "a", **JSON_YES}, "json_object must be true or false"),
        (TEXT, {"prompt": [[-1]]}, "vocabulary"),
        (TEXT, {"prompt": "x" * 200_000}, "context"),
        (RESPONSES, {"input": ASK, "tools": NAMELESS}, "of a tool must be a string"),
        (RESPONSES, {"input": ASK, "previous_response_id": "r"}, "previous_response"),
        (RESPONSES, {"input": ASK, "text": FORM}, "must be an object, not 'json'"),
        (MESSAGES, asked(max_tokens=4, output_config=FORM), "must be an object"),
        (MESSAGES, asked(max_tokens=4, **AUTO), "auto"),
        (MESSAGES, {"messages": RESULT, "max_tokens": 4}, "be a string or a list of"),
        (MESSAGES, {"messages": ASK}, "max_tokens"),
        (MESSAGES, asked(max_tokens="many"), "max_tokens"),
    ],
)
def test_nonsense_is_refused_in_words(server, path, body, words):
    text = json.dumps(body).replace("Infinity", "1e400") if type(body) is dict else body
    headers = {"content-type": "application/json"}
    response = server.http.post(path, content=text, headers=headers)
    assert response.status_code == 400, response.text
    error = response.json()
    # Anthropic's shape, or OpenAI's
    assert error.get("type") == ("error" if path == MESSAGES else None)
    assert words in error["error"]["message"]
    assert "Traceback" not in response.text
    alive = server.post(CHAT, messages=ASK, max_tokens=2, temperature=0)
    assert alive["usage"]["completion_tokens"] == 2


def test_another_type_of_body_is_named(server):
    headers = {"content-type": "text/plain"}
    response = server.http.post(CHAT, content=b'{"messages": []}', headers=headers)
    assert response.status_code == 400
    words = "its content-type is 'text/plain'. Send application/json"
    assert words in response.json()["error"]["message"]


def test_another_method_is_told_the_right_one(server):
    response = server.http.get(CHAT)
    assert response.status_code == 405
    words = f"cannot GET {CHAT}: the path does not take it. Use POST"
    assert response.json()["error"]["message"] == words


def test_no_limit_is_minus_one_as_in_llama_cpp(server):
    answers = [
        server.post(CHAT, messages=ASK, seed=3, temperature=0, max_tokens=limit)
        for limit in (-1, 500)
    ]
    assert answers[0]["choices"][0]["message"] == answers[1]["choices"][0]["message"]
