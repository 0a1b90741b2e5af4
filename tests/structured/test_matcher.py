"""Masks of every node, forced text and an answer's end, against xgrammar."""

import random

import pytest
import torch
from xgrammar import GrammarMatcher, allocate_token_bitmask

from foreword.structured.matcher import AnswerGrammar
from foreword.types import DraftTree
from foreword.types.params import SamplingParams
from running import grammars, target, tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"first_name": {"type": "string"}, "é": {"enum": [10, 11]}},
    "required": ["first_name", "é"],
}
CONTENT = {"type": "json_schema", "json_schema": {"enum": ["é"]}}
CALL = {"type": "tag", "begin": "<call>", "content": CONTENT, "end": "</call>"}
JSON = SamplingParams(json_schema=SCHEMA)


def ids(text: str) -> list[int]:
    return list(tokenizer()(text)["input_ids"])


def answer(params: SamplingParams, prompt: int = 0) -> AnswerGrammar:
    return grammars().answer(grammars().compiled(params), params, prompt)


def fresh(params: SamplingParams, text: list[int]) -> set[int] | None:
    """The tokens that may follow a text, without the end; None if it is refused."""
    vocab = target().vocab
    matcher = GrammarMatcher(grammars().compiled(params))
    if not all(matcher.accept_token(token) for token in text):
        return None
    bits = allocate_token_bitmask(1, vocab + 1)
    matcher.fill_next_token_bitmask(bits)
    every = (bits[0, :, None] >> torch.arange(32) & 1).flatten()[: vocab + 1]
    found = set(every.nonzero()[:, 0].tolist())
    return found - {vocab} | (target().eos if vocab in found else set())


def test_every_node_has_the_mask_of_its_own_path():
    rng, grammar, tokens = random.Random(1), answer(JSON), []
    whole = ids('{"first_name": "Zoë", "é": 1')
    for _ in range(12):
        tree, wrong = DraftTree(), rng.randrange(300, 8000)
        for node in range(12):
            parent = rng.randrange(-1, node)
            at = len(tokens) + len(tree.paths[parent + 1])
            right = at < len(whole) and rng.random() < 0.8
            tree.add(whole[at] if right else wrong, parent, 1.0)
        found = grammar.allowed(tokens, tree.paths)
        for row, path in enumerate(tree.paths):
            allowed = set(found[row].nonzero()[:, 0].tolist())
            assert allowed == (fresh(JSON, tokens + path) or set())
        taken = [fresh(JSON, tokens + path) is not None for path in tree.paths[1:]]
        kept = [node for node, is_taken in enumerate(taken) if is_taken]
        assert grammar.accepted(tokens, tree) == kept
        tokens = whole[: len(tokens) + 1]


def test_forced_text_is_spelled_until_there_is_a_choice():
    grammar, decode = answer(JSON), tokenizer().decode
    assert decode(grammar.forced([], [], 16)) == '{"first_name":'
    assert grammar.forced([], [], 2) == grammar.forced([], [], 16)[:2]
    assert grammar.forced(ids('{"first_name": "Jo'), [], 16) == []
    behind = ids('{"first_name": "Jo", "')
    assert decode(grammar.forced(behind[:-2], behind[-2:], 16)) == 'é": 1'
    assert grammar.forced(behind, [5], 16) == [], "a refused path forces nothing"
    last = ids('{"first_name": "Jo", "é": 10')
    assert decode(grammar.forced(last, [], 16)) == "}"


def test_text_that_is_forced_without_end_is_bounded():
    grammar = answer(SamplingParams(grammar='root ::= "ab" root'))
    assert len(grammar.forced([], [], 16)) == 16


def test_answer_is_finished_once_nothing_may_follow():
    whole = ids('{"first_name": "", "é": 11}')
    for prompt in (0, 3):
        grammar = answer(JSON, prompt)
        texts = [[7] * prompt + whole[:length] for length in range(len(whole) + 1)]
        ends = [grammar.finished(text) for text in texts]
        assert ends == [False] * len(whole) + [True]
    open_end = answer(SamplingParams(regex="a+"))
    assert not any(open_end.finished(ids("aaa")[:length]) for length in range(2))


def test_end_of_text_is_a_draft_token_like_any_other():
    (eos,) = target().eos
    grammar, a = answer(SamplingParams(regex="a+")), ids("a")[0]
    tree = DraftTree()
    first = tree.add(eos, -1, 1.0)
    second = tree.add(a, -1, 1.0)
    end = tree.add(eos, second, 1.0)
    tree.add(a, end, 1.0)
    assert grammar.accepted([], tree) == [second, end]
    rows = grammar.allowed([], tree.paths).any(1)
    assert rows.nonzero()[:, 0].tolist() == [0, 2, 3]
    assert first == 0
    tree = DraftTree()
    tree.add(tokenizer().all_special_ids[1], -1, 1.0)
    assert grammar.accepted([], tree) == []


def test_nothing_is_written_to_standard_error(capfd):
    grammar = answer(JSON)
    tree = DraftTree()
    for token in (*tokenizer().all_special_ids, 5, 6):
        tree.add(token, -1, 1.0)
    capfd.readouterr()
    grammar.accepted([], tree)
    grammar.allowed([], tree.paths)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "kind", ["json_schema", "json_object", "regex", "grammar", "structural_tag"]
)
def test_every_kind_of_form(kind):
    forms = {
        "json_schema": (SCHEMA, '{"first_name": "a", "é": 10}'),
        "json_object": (True, '{"a": [1, null]}'),
        "regex": ("a|b{2}", "bb"),
        "grammar": ('root ::= "x" | "y" root', "yyx"),
        "structural_tag": (
            {"type": "structural_tag", "format": CALL},
            '<call>"é"</call>',
        ),
    }
    form, text = forms[kind]
    grammar, whole = answer(SamplingParams(**{kind: form})), ids(text)
    for length in range(len(whole)):
        assert grammar.allowed(whole[:length], [[]])[0, whole[length]], text
    assert grammar.finished(whole)
