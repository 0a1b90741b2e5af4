"""One client's methods and grammars stop no other: refused, compiled apart, ended."""

import httpx2 as httpx
import pytest

from foreword import SamplingParams
from foreword_server.settings import hashed
from serving import Running

ENDLESS = "".join(f"({letter}?)" for letter in 300 * "abcdefghij")
"""An expression that takes minutes to compile."""
NAMES = {
    "deep": "cascade(" * 900 + "lm" + ")" * 900,
    "wide": f"cascade({'lm,' * 5000}suffix)",
    "nested": "cascade(" * 5 + "lm,suffix" + ")" * 5,
    "many": f"cascade({','.join('abcdefghijklmnopq')})",
}
DIALECTS = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/responses": {"input": "x"},
}


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("name", NAMES)
def test_names_of_methods_are_bounded_in_every_dialect(server, path, name):
    body = {"max_tokens": 4, **DIALECTS[path]}
    body |= {"max_output_tokens": body.pop("max_tokens")} if "input" in body else {}
    refused = server.http.post(
        path, json={**body, "speculative": {"method": NAMES[name]}}
    )
    assert refused.status_code == 400
    assert "the limit is" in refused.text
    assert len(refused.text) < 500
    assert (
        server.http.post(
            path, json={**body, "model": f"foreword-family:{NAMES[name]}"}
        ).status_code
        == 404
    )


def test_spellings_of_a_method_are_one_in_answers(serving):
    ask = {"prompt": "One day", "max_tokens": 4, "temperature": 0}
    with serving() as server:
        names = (
            "cascade(suffix,lm)",
            "cascade(suffix,   lm)",
            " cascade ( suffix , lm ) ",
        )
        answers = [
            server.post("/v1/completions", **ask, speculative={"method": name})
            for name in names
        ]
    methods = [
        answer["metrics"]["speculative_decoding"]["method"] for answer in answers
    ]
    assert methods == ["cascade(suffix, lm)"] * len(names)


def test_grammars_of_one_client_hold_up_no_other(serving, llm):
    """Neither another client's answers nor its own next ones, once it has left."""
    ask = {"prompt": "One day", "max_tokens": 12, "seed": 1}
    small = {"structured_outputs": {"regex": "[a-d]{6}"}}

    def post(server: Running, key: str, **more: object) -> str:
        answer = server.http.post(
            "/v1/completions", json={**ask, **more}, headers={"x-api-key": key}
        )
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]

    with serving(keys=hashed(["a", "b"])) as server:
        free = llm.generate("One day", SamplingParams(max_tokens=12, seed=1))[0].text
        followed = llm.generate(
            "One day", SamplingParams(max_tokens=12, seed=1, regex="[a-d]{6}")
        )[0].text
        long = {**ask, "structured_outputs": {"regex": ENDLESS}}
        with pytest.raises(httpx.ReadTimeout):
            server.http.post(
                "/v1/completions", json=long, headers={"x-api-key": "a"}, timeout=0.2
            )
        assert post(server, "b") == free
        assert post(server, "b", **small) == followed
        assert post(server, "a", structured_outputs={"regex": "[a-d]{7}"})
        assert llm.session._requests._grammars._queue._waiting == []
