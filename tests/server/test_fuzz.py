"""Bodies that no client should send: never a 5xx, always an error's shape."""

import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from grids import slow_case
from serving import Running

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.just("\ud800"),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(
            ["user", "assistant", "system", "tool", "developer", "x"]
        ),
        "content": JSON | st.text(),
    },
    optional={"tool_calls": JSON, "name": JSON},
)
NAMES = """
temperature top_p top_k min_p seed stop n logit_bias stream tools tool_choice model speculative prediction text system
response_format guided_regex structured_outputs reasoning thinking metadata stream_options logprobs echo suffix
top_logprobs chat_template_kwargs reasoning_effort stop_sequences instructions frequency_penalty bad_words priority
"""
SHARED: dict[str, st.SearchStrategy[Any]] = dict.fromkeys(NAMES.split(), JSON)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
"""Not all bodies of the schema: it cannot say which roles a model has."""
PATHS = {
    "/v1/chat/completions": {
        "messages": st.lists(MESSAGE, max_size=3) | JSON,
        "max_tokens": st.just(2),
    },
    "/v1/completions": {"prompt": st.text(max_size=9) | JSON, "max_tokens": st.just(2)},
    "/v1/responses": {
        "input": st.lists(MESSAGE, max_size=3) | JSON,
        "max_output_tokens": st.just(2),
    },
    "/v1/messages": {
        "messages": st.lists(MESSAGE, max_size=3) | JSON,
        "max_tokens": st.just(2),
    },
    "/v1/messages/count_tokens": {"messages": st.lists(MESSAGE, max_size=3) | JSON},
    "/tokenize": {"prompt": JSON},
    "/detokenize": {"tokens": JSON},
}


MANY = slow_case(120)


# the server, in another thread, does
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@pytest.mark.parametrize("examples", [30, MANY])
@pytest.mark.parametrize("path", PATHS)
def test_no_body_breaks_the_server(server: Running, path: str, examples: int) -> None:
    seen: set[int] = set()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(body=st.fixed_dictionaries(PATHS[path], optional=SHARED))
    def send(body: dict[str, Any]) -> None:
        content = json.dumps(body)
        response = server.http.post(
            path, content=content, headers={"content-type": "application/json"}
        )
        seen.add(response.status_code)
        assert response.status_code in (200, 400, 404), response.text
        if response.status_code != 200:
            assert response.json()["error"]["message"]

    send()
    assert 400 in seen
    assert server.http.get("/health").status_code == 200
    good = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "seed": 1}
    assert server.http.post("/v1/chat/completions", json=good).status_code == 200


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@pytest.mark.parametrize("examples", [4, slow_case(15)])
def test_the_api_is_as_it_is_described(server: Running, examples: int) -> None:
    """Requests made from our OpenAPI description get answers that it describes."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    paths = [operation.ok() for operation in schema.get_all_operations()]
    assert {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
    } <= {one.path for one in paths}
    for operation in paths:

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def send(case: Any) -> None:
            # an answer to the end of the context would only take time
            if isinstance(case.body, dict):
                names = (
                    "max_tokens",
                    "max_output_tokens",
                    "max_completion_tokens",
                    "n",
                )
                case.body.update(
                    {
                        name: 1
                        for name in names
                        if name in case.body or name == "max_tokens"
                    }
                )
            case.call_and_validate(checks=CHECKS)

        send()
