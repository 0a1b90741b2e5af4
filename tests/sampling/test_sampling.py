"""Every parameter means what it does in transformers; rows are independent."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from transformers.generation import logits_process as hf
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from foreword.errors import InvalidRequest
from foreword.native import sampling
from foreword.sampling.draw import (
    draw,
    drawn_tokens,
    logprobs,
    one_hot,
    probs,
    walk,
)
from foreword.sampling.filters import _filtered_all, fit, nucleus
from foreword.sampling.filters import top_p as quick_nucleus
from foreword.sampling.logits import weights, weights_or_invalid
from foreword.sampling.noise import extended, gumbel
from foreword.sampling.suppressed import Suppressed
from foreword.types import DraftTree, Request, SamplingParams
from foreword.verify.match import follow

VOCAB = 1003
PROMPT, OUTPUT = [1, 2, 3, 2], [7, 5, 7]
PATHS = [[], [7], [7, 5], [9, 9, 5, 7], [2]]
EOS = 4
ALLOWED = (3, 7, 8, 9, 40)
BAD = ((6,), (5, 7, 8), (7, 11), (9, 9, 5, 7, 12), (1, 2, 3, 2, 7, 5, 7, 13), (0,) * 12)


def _logits(rows=5, vocab=VOCAB, scale=4.0, seed=0):
    return (
        torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale
    )


def _sequence(**params):
    params = SamplingParams(**params)
    return Request(
        0, PROMPT + OUTPUT, len(PROMPT), params, seed=0, eos=frozenset({EOS})
    )


def _halve(tokens, scores):
    """A processor that reads the text, and writes to its argument as some do."""
    scores[:, tokens[0, -1]] -= 1.5 * tokens.shape[1]
    return scores


def _by_transformers(logits, paths, processors):
    rows = []
    for row, path in enumerate(paths):
        text = torch.tensor([PROMPT + OUTPUT + path])
        scores = logits[row : row + 1].clone()
        for processor in processors:
            scores = processor(text, scores)
        rows.append(scores)
    return torch.cat(rows)


def _min_tokens(count, ends):
    return hf.MinNewTokensLengthLogitsProcessor(len(PROMPT), count, ends)


CASES = {
    "nothing": ({}, []),
    "temperature": ({"temperature": 0.7}, [hf.TemperatureLogitsWarper(0.7)]),
    "top_k": ({"top_k": 20}, [hf.TopKLogitsWarper(20)]),
    "top_k beyond the vocabulary": ({"top_k": 5000}, [hf.TopKLogitsWarper(5000)]),
    "top_p": ({"top_p": 0.9}, [hf.TopPLogitsWarper(0.9)]),
    "top_p small": ({"top_p": 0.01}, [hf.TopPLogitsWarper(0.01)]),
    "min_p": ({"min_p": 0.03}, [hf.MinPLogitsWarper(0.03)]),
    "typical_p": ({"typical_p": 0.8}, [hf.TypicalLogitsWarper(0.8)]),
    "logit_bias": (
        {"logit_bias": {3: 5.0, 9: -100.0}},
        [hf.SequenceBiasLogitsProcessor({(3,): 5.0, (9,): -100.0})],
    ),
    "repetition_penalty": (
        {"repetition_penalty": 1.3},
        [hf.RepetitionPenaltyLogitsProcessor(1.3)],
    ),
    "bad_word_ids": (
        {"bad_word_ids": BAD},
        [hf.NoBadWordsLogitsProcessor([list(word) for word in BAD])],
    ),
    "allowed_token_ids": (
        {"allowed_token_ids": ALLOWED},
        [hf.PrefixConstrainedLogitsProcessor(lambda *_: list(ALLOWED), 1)],
    ),
    "min_tokens": (
        {"min_tokens": 5, "stop_token_ids": (8,)},
        [_min_tokens(5, [EOS, 8])],
    ),
    "processors": ({"processors": (_halve,)}, [_halve]),
}
ALL = {
    "logit_bias": {3: 5.0, 9: -2.0},
    "repetition_penalty": 1.2,
    "bad_word_ids": BAD,
    "min_tokens": 5,
    "processors": (_halve,),
    "temperature": 0.8,
    "top_k": 300,
    "top_p": 0.95,
    "min_p": 0.002,
    "typical_p": 0.9,
}
CASES["everything"] = (
    ALL,
    [
        hf.SequenceBiasLogitsProcessor({(3,): 5.0, (9,): -2.0}),
        hf.RepetitionPenaltyLogitsProcessor(1.2),
        hf.NoBadWordsLogitsProcessor([list(word) for word in BAD]),
        _min_tokens(5, [EOS]),
        _halve,
        hf.TemperatureLogitsWarper(0.8),
        hf.TopKLogitsWarper(300),
        hf.TopPLogitsWarper(0.95),
        hf.MinPLogitsWarper(0.002),
        hf.TypicalLogitsWarper(0.9),
    ],
)


def test_each_parameter_means_what_it_means_in_transformers():
    for name, (params, processors) in CASES.items():
        for seed, scale in enumerate((4.0, 1.0, 0.2)):
            logits = _logits(scale=scale, seed=seed)
            kept = logits.clone()
            result = weights(logits, _sequence(**params), PATHS)
            assert torch.equal(logits, kept), (name, scale)
            expected = _by_transformers(logits, PATHS, processors)
            torch.testing.assert_close(
                result,
                expected,
                rtol=1e-6,
                atol=1e-6,
                msg=lambda text, case=(name, scale): f"{case}: {text}",
            )


def test_presence_and_frequency_count_the_output_only():
    logits = _logits()
    sequence = _sequence(presence_penalty=0.5, frequency_penalty=0.25)
    result = weights(logits, sequence, PATHS)
    for row, path in enumerate(PATHS):
        expected = logits[row].clone()
        for token in set(OUTPUT + path):
            expected[token] -= 0.5 + 0.25 * (OUTPUT + path).count(token)
        torch.testing.assert_close(result[row], expected)


@pytest.mark.parametrize("vocab", [1003, 8192, 8209])
def test_row_does_not_depend_on_the_others(vocab):
    check_rows({"frequency_penalty": 0.3}, vocab)
    for params, _ in CASES.values():
        check_rows(params, vocab)


def check_rows(params: dict, vocab: int) -> None:
    logits, sequence = _logits(vocab=vocab, scale=2.0), _sequence(**params)
    together = weights(logits, sequence, PATHS)
    for row, path in enumerate(PATHS):
        alone = weights(logits[row : row + 1].clone(), sequence, [path])[0]
        assert torch.equal(alone, together[row]), (params, row)
    committed = _sequence(**params)
    committed.tokens += PATHS[3]
    assert torch.equal(weights(logits[3:4], committed, [[]])[0], together[3]), params


def test_weights_are_float32_and_neutral_parameters_copy_nothing():
    assert weights(_logits().bfloat16(), _sequence()).dtype == torch.float32
    logits = _logits()
    assert weights(logits, _sequence()) is logits


def test_temperature_zero_leaves_the_filters_out():
    logits = _logits()
    filters = dict(top_k=1, top_p=0.1, logit_bias={3: 50.0})
    result = weights(logits, _sequence(temperature=0.0, **filters), PATHS)
    assert result.isfinite().all()
    assert draw(result, None).tolist() == [3] * len(PATHS)


KINDS = ["random", "flat", "ties", "bfloat16", "one hot", "few allowed", "mixed"]


def _adversarial(kind, rows=4, vocab=2500):
    logits = _logits(rows, vocab, scale=3.0, seed=1)
    match kind:
        case "flat":
            return torch.zeros(rows, vocab)
        case "ties":
            return logits.round()
        case "bfloat16":
            return logits.bfloat16().float()
        case "one hot":
            return torch.where(logits == logits.amax(-1, keepdim=True), 40.0, 0.0)
        case "few allowed":
            return logits.masked_fill(torch.arange(vocab) % 500 != 0, -math.inf)
        case "mixed":
            return logits * torch.tensor([0.0, 0.3, 1.0, 9.0]).unsqueeze(1)
    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_fast_top_p_equals_the_sorted_one(kind):
    logits = _adversarial(kind)
    for top_p in (1e-30, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9):
        assert torch.equal(quick_nucleus(logits, top_p), nucleus(logits, top_p)), top_p


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 2**31),
    st.floats(0.01, 0.999),
    st.floats(0.05, 10),
    st.integers(1, 40),
    st.booleans(),
)
def test_fast_top_p_equals_the_sorted_one_on_random_rows(
    seed, top_p, scale, candidates, coarse
):
    logits = _logits(3, 400, scale, seed)
    logits = logits.round() if coarse else logits
    assert torch.equal(quick_nucleus(logits, top_p, candidates), nucleus(logits, top_p))


@pytest.mark.parametrize("kind", KINDS)
def test_few_candidates_have_the_distribution_of_all_tokens(kind, monkeypatch):
    """Ties and rows with few tokens are filtered whole, beside other rows."""
    every = (
        {},
        {"temperature": 0.7, "top_p": 0.9},
        {"top_p": 0.5, "min_p": 0.2, "temperature": 1.4},
    )
    for params in every:
        for top_k in (1, 20, 256):
            check_candidates(kind, top_k, params)
    monkeypatch.setattr(sampling, "best", lambda *_: None)  # as without a compiler
    for params in every:
        check_candidates(kind, 20, params)


def check_candidates(kind: str, top_k: int, options: dict) -> None:
    logits, params = _adversarial(kind), SamplingParams(top_k=top_k, **options)
    logits[0, 0] = 50.0  # where what is missing would lie, too
    given = logits.clone()
    assert fit(params, logits.shape[-1])
    request = Request(1, PROMPT, len(PROMPT), params, seed=0, eos=frozenset())
    found = weights(logits, request)
    assert torch.equal(found, _filtered_all(given, params)), params
    assert torch.equal(logits, given), params


@pytest.mark.skipif(
    sampling.reason() is not None, reason=f"no compiler: {sampling.reason()}"
)
@pytest.mark.parametrize("vocab", [5, 16, 331, 2500])
def test_best_tokens_are_those_of_a_stable_sort(vocab):
    for most in (1, 7, 40):
        for coarse in (False, True):
            check_best(vocab, most, coarse=coarse)


def check_best(vocab: int, most: int, *, coarse: bool) -> None:
    rows = torch.randn(3, vocab)
    rows = rows.round() if coarse else rows
    rows[0, 1:] = -torch.inf
    values, ids = sampling.best(rows, most) or pytest.fail("there is a compiler")
    wanted, order = rows.sort(descending=True, stable=True)
    wanted = F.pad(wanted, (0, most), value=-torch.inf)[:, :most]
    order = F.pad(order, (0, most))[:, :most]
    assert torch.equal(values, wanted), (most, coarse)
    assert torch.equal(ids, torch.where(wanted > -torch.inf, order, 0)), (most, coarse)


def test_top_p_breaks_ties_as_transformers_does():
    flat = torch.zeros(1, 8)
    kept = nucleus(flat, 0.5).isfinite()
    assert torch.equal(kept, hf.TopPLogitsWarper(0.5)(None, flat).isfinite())
    assert kept.sum() == 4


def test_top_p_keeps_the_smallest_set_that_reaches_it():
    distribution = torch.tensor([[0.1, 0.5, 0.15, 0.25]]).log()
    for top_p, kept in ((0.7, [1, 3]), (0.8, [1, 2, 3])):
        assert (
            nucleus(distribution, top_p)[0].isfinite().nonzero()[:, 0].tolist() == kept
        )


def test_forbidding_everything_is_an_error_in_plain_decoding_only():
    sequence = _sequence(bad_word_ids=tuple((7, token) for token in range(VOCAB)))
    for paths in ([[]], [[7]]):
        with pytest.raises(InvalidRequest, match="bad_word_ids"):
            weights(_logits(1), sequence, paths)
    logits = _logits(3)
    distribution, lost = weights_or_invalid(logits, sequence, [[5], [7], [5, 6]])
    assert lost == {1}
    assert distribution[1].tolist() == [0.0] * VOCAB
    expected = weights(logits[[0, 2]], sequence, [[5], [5, 6]])
    torch.testing.assert_close(distribution[[0, 2]], expected, rtol=0, atol=0)
    with pytest.raises(InvalidRequest, match="bad_word_ids"):
        weights_or_invalid(_logits(2), sequence, [[], [5]])


def test_processor_that_fails_on_a_draft_costs_that_draft():
    def fussy(tokens, scores):
        if tokens[0, -1] == 7:
            raise RuntimeError("never a seven")
        return scores

    sequence = _sequence(processors=(fussy,))
    distribution, lost = weights_or_invalid(_logits(2), sequence, [[5], [7]])
    assert (lost, distribution[1].tolist()) == ({1}, [0.0] * VOCAB)
    ended_with_seven = _sequence(processors=(fussy,))
    ended_with_seven.tokens.append(7)
    with pytest.raises(RuntimeError, match="never a seven"):
        weights_or_invalid(_logits(2), ended_with_seven, [[], [5]])


@pytest.mark.parametrize(
    ("params", "paths", "message"),
    [
        ({"min_tokens": 2}, None, "Pass paths"),
        ({"min_tokens": 2}, [[]], "one list for each row"),
        ({"logit_bias": {VOCAB: 1.0}}, None, "logit_bias"),
        ({"processors": (lambda tokens, scores: scores[0],)}, PATHS, "shape"),
    ],
)
def test_wrong_use_says_what_to_do(params, paths, message):
    with pytest.raises(InvalidRequest, match=message):
        weights(_logits(), _sequence(**params), paths)


def test_distributions_and_draws():
    distribution = torch.tensor([[1.0, 3.0, 3.0], [0.0, -math.inf, -1.0]])
    assert one_hot(distribution).tolist() == [
        [-math.inf, 0.0, -math.inf],
        [0.0, -math.inf, -math.inf],
    ]
    torch.testing.assert_close(probs(distribution), distribution.softmax(-1))
    assert draw(distribution, None).tolist() == [1, 0]
    noise = torch.tensor([[2.5, 0.0, 0.0], [0.0, 22.0, 1.5]])
    assert draw(distribution, noise).tolist() == [0, 2]


def test_logprobs_are_the_raw_targets():
    logits = _logits(2).bfloat16()
    expected = logits.float().log_softmax(-1)
    first, second = logprobs(logits, [5, 9], top=3)
    assert (first.token, second.token) == (5, 9)
    assert second.logprob == pytest.approx(expected[1, 9].item())
    assert [value for _, value in first.top] == expected[0].topk(3).values.tolist()
    assert all(expected[0, token].item() == value for token, value in first.top)
    assert logprobs(logits, [5, 9], top=0)[0].top == ()


@pytest.mark.parametrize("vocab", [5, 320, 8192])
def test_choosing_in_one_pass_is_drawing_from_the_distribution(vocab):
    for temperature in (0.0, 0.7, 1.0, 1.9):
        check_choice(temperature, vocab)


def check_choice(temperature: float, vocab: int) -> None:
    generator = torch.Generator().manual_seed(vocab)
    # rounded: many ties
    logits = torch.randn(40, vocab, generator=generator).mul(3).round(decimals=1)
    logits[3] = -math.inf
    logits[3, 2] = 0.0
    asked = _sequence(temperature=temperature)
    keys = range(40) if temperature else None
    noise = None if keys is None else gumbel(keys, vocab)
    drawn = draw(weights(logits, asked), noise).tolist()
    # every third row is greedy, and there are more than are drawn at once
    each = keys or [None] * 40
    draws = [(temperature, key) for key in each]
    assert drawn_tokens(logits, draws).tolist() == drawn, temperature
    rows = [
        (temperature, key) if row % 3 else (2.0, None) for row, key in enumerate(each)
    ]
    mixed = [
        token if row % 3 else int(logits[row].argmax())
        for row, token in enumerate(drawn)
    ]
    assert drawn_tokens(logits.repeat(2, 1), rows * 2).tolist() == mixed * 2


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@given(
    shape=st.lists(st.tuples(st.integers(-1, 11), st.integers(0, 2)), max_size=12),
    seed=st.integers(0, 2**16),
)
def test_a_walk_draws_what_following_all_draws_finds(
    temperature: float, shape: list[tuple[int, int]], seed: int
):
    """Three tokens, so that many draft tokens are accepted and siblings are alike."""
    parents = [min(parent, node - 1) for node, (parent, _) in enumerate(shape)]
    tree = DraftTree([token for _, token in shape], parents)
    noise = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(tree) + 1, 3, generator=noise)
    key = seed if temperature else None
    draws = [
        (temperature, None if key is None else extended(key, path))
        for path in tree.paths
    ]
    followed = follow(drawn_tokens(logits, draws).tolist(), tree)
    assert walk(logits, (temperature, key), tree) == followed


class Wrong:
    """A processor that returns no logits once a text ends with a token."""

    def __init__(self, answer, at=None):
        self.answer, self.at = answer, at

    def __call__(self, tokens, scores):
        wrong = self.at is None or tokens[0, -1] == self.at
        return self.answer(scores) if wrong else scores


WRONG = [
    (lambda scores: None, "it returned NoneType, not a tensor"),
    (lambda scores: scores.numpy(), "it returned ndarray, not a tensor"),
    (lambda scores: scores[0], "shape"),
    (lambda scores: scores.long(), "int64"),
    (lambda scores: scores.to("meta"), "on meta"),
    (lambda scores: scores * math.nan, "NaN or infinity"),
    (lambda scores: scores + math.inf, "NaN or infinity"),
]


@pytest.mark.parametrize(("answer", "says"), WRONG, ids=[says for _, says in WRONG])
def test_a_processor_that_returns_no_logits_is_named(answer, says):
    with pytest.raises(InvalidRequest, match=f"processor Wrong: .*{says}"):
        weights(_logits(1), _sequence(processors=(Wrong(answer),)), [[]])
    sequence = _sequence(processors=(Wrong(answer, at=5),))
    distribution, lost = weights_or_invalid(_logits(2), sequence, [[], [5]])
    assert lost == {1}
    plain = weights(_logits(2), _sequence(processors=()), [[], [5]])
    assert torch.equal(distribution[0], plain[0])


def test_a_processor_is_not_blamed_for_the_model():
    scores = _logits(1).index_fill(1, torch.tensor([3]), math.nan)
    processors = (Wrong(lambda scores: scores),)
    sequence = _sequence(temperature=0, processors=processors)
    assert weights(scores, sequence, [[]])[0, 3].isnan()


@pytest.mark.parametrize("ids", [[0], [3, 7, 7, 19], [-1, 2, 25]], ids=str)
def test_scores_are_those_of_transformers(ids):
    for length in (3, 4, 5):
        check(ids, length)


def check(ids: list[int], length: int) -> None:
    tokens, scores = torch.zeros(1, length, dtype=torch.long), torch.randn(1, 20)
    before = scores.clone()
    everywhere = SuppressTokensLogitsProcessor(ids)(tokens, before)
    assert torch.equal(Suppressed(ids)(tokens, scores), everywhere)
    first = SuppressTokensAtBeginLogitsProcessor(ids, 4)(tokens, before)
    assert torch.equal(Suppressed(ids, 4)(tokens, scores), first)
    assert torch.equal(first, before) == (length != 4)
    assert torch.equal(scores, before)
    assert bool(everywhere.isinf().any())
