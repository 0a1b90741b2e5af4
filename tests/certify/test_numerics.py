"""A difference is rounding where two scores are nearly tied, and else a fault."""

from dataclasses import replace

import pytest
import torch

from foreword import LLM, SamplingParams
from foreword_lab.certify.cases import Case, encoded
from foreword_lab.certify.numerics import difference, next_logits
from foreword_lab.certify.runs import run


def best_two(llm: LLM, prompt: tuple[int, ...]) -> tuple[list[int], float]:
    """The two likeliest tokens, and how far they lie apart."""
    scores = next_logits(llm, 10**9, [*prompt])[-1].topk(2)
    gap = float(scores.values[0] - scores.values[1])
    return scores.indices.tolist(), gap


def parted(llm: LLM, bias: float) -> tuple[Case, object, object]:
    """A greedy request whose second token was raised, and two texts that part there."""
    prompt = encoded(llm, "The capital of France is")
    (first, second), _ = best_two(llm, prompt)
    params = SamplingParams(
        temperature=0, max_tokens=4, logit_bias={second: bias}, seed=1
    )
    case = Case(prompt, params)
    (plain,) = run(llm, [case])
    other = second if plain.tokens[0] == first else first
    return case, plain, replace(plain, tokens=[other, *plain.tokens[1:]])


def test_tie_is_rounding_and_another_likely_token_a_fault(plain: LLM) -> None:
    _, gap = best_two(plain, encoded(plain, "The capital of France is"))
    tie, fault = (difference(plain, *parted(plain, bias)) for bias in (gap, -20.0))
    assert (tie.is_numerics, tie.position) == (True, 0)
    assert tie.as_json()["kind"] == "numerics"
    assert not fault.is_numerics
    assert fault.margin > 10


def test_text_that_ends_early_is_a_fault_and_an_equal_one_is_none(plain: LLM) -> None:
    case, whole, _ = parted(plain, 0.0)
    found = difference(plain, case, whole, replace(whole, tokens=whole.tokens[:2]))
    assert (found.drafted, found.is_numerics) == (None, False)
    assert found.as_json()["margin"] is None
    assert difference(plain, case, whole, whole) is None


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_scores_are_those_that_decided(plain: LLM, temperature: float) -> None:
    """The token of plain decoding has the best score with its noise."""
    from foreword_lab.certify.numerics import _scores

    prompt = encoded(plain, "Once upon a time")
    params = SamplingParams(temperature=temperature, max_tokens=6, seed=9, top_p=0.95)
    case = Case(prompt, params)
    (answer,) = run(plain, [case])
    for place, token in enumerate(answer.tokens):
        (request,) = plain.session.prepare([*prompt], params)
        request.tokens += answer.tokens[:place]
        logits = next_logits(plain, request.id, request.tokens)[-1]
        assert torch.argmax(_scores(logits, request, plain.target.vocab)) == token
