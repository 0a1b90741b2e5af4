"""`--json-schema`, `--regex` and `--grammar`: the library's answers, and refusals."""

import json
import re

import pytest

from foreword import SamplingParams

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"enum": [1, 2]}},
    "required": ["ok", "n"],
}
WORDS = ("--seed", "3", "--max-tokens", "40", "--no-stats")


def test_forms_reach_the_request(here, llm):
    (here.folder / "schema.json").write_text(json.dumps(SCHEMA), encoding="utf-8")
    (here.folder / "sums.ebnf").write_text(
        'root ::= [0-9]{1,2} " = " [0-9]{1,2}', encoding="utf-8"
    )
    message = [{"role": "user", "content": "Well?"}]
    for words, form in (
        (("--json-schema", "schema.json"), dict(json_schema=SCHEMA)),
        (("--json-schema", json.dumps(SCHEMA)), dict(json_schema=SCHEMA)),
        (("--regex", "(yes|no), [a-c]{3}"), dict(regex="(yes|no), [a-c]{3}")),
        (
            ("--grammar", "sums.ebnf"),
            dict(grammar='root ::= [0-9]{1,2} " = " [0-9]{1,2}'),
        ),
        (("--json-object",), dict(json_object=True)),
    ):
        found = here("generate", "Well?", *words, *WORDS)
        expected = llm.chat(message, SamplingParams(seed=3, max_tokens=40, **form))
        assert (found.returncode, found.stdout) == (0, expected.text + "\n"), (
            found.stderr
        )
        if "json_schema" in form:
            assert set(json.loads(found.stdout)) == {"ok", "n"}


def test_chat_answers_in_the_form(here):
    found = here(
        "chat", "--regex", "(yes|no)!", "--no-stats", typed="Is it?\nAnd now?\n"
    )
    assert re.fullmatch(r"((yes|no)!\n){2}", found.stdout), found.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--json-schema", "nowhere.json"], "cannot read nowhere.json"),
        (["--json-schema", "{"], "json_schema must be a JSON object"),
        (["--grammar", "."], "cannot read ."),
        (["--regex", "a", "--json-object"], "cannot follow both json_object and regex"),
        (["--regex", "("], "cannot follow this regex: "),
        (["--regex", ""], "regex must be None or a text that is not empty"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_form_that_cannot_be_followed_is_one_line(here, unbarred, words, said):
    found = here("generate", "x", *words)
    assert (found.returncode, found.stdout) == (2, ""), found.stderr
    assert found.stderr.startswith("error: ")
    assert found.stderr.count("\n") == 1
    assert said in found.stderr
