"""The copy of an expected answer: its place, leaving and joining, its certainty."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foreword.draft.lookup.predicted import SIZES, Copy, PredictedDrafter, agreement
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Request, SamplingParams, Scores, Source, Verdict
from running import Case, drafter, engine, finish, of_length, plain, prompts, target

few = st.integers(0, 3)
texts = st.lists(few, min_size=1, max_size=30)


def sequence(
    written: list[int],
    prediction: list[int],
    prompt: tuple[int, ...] = (40, 41),
    id: int = 0,
) -> Request:
    params = SamplingParams(temperature=0, prediction=tuple(prediction))
    tokens = [*prompt, *written]
    return Request(
        id, tokens, len(prompt), params, 0, frozenset({9}), prediction=tuple(prediction)
    )


def batch(*sequences: Request, floor: float = 0.0) -> Batch:
    return Batch(sequences, NoiseStreams(50, shared=True), floor=floor)


def propose(one: Request, budget: int, by: PredictedDrafter | None = None) -> list[int]:
    draft = (by or PredictedDrafter()).propose(batch(one), [budget])
    assert draft.chain
    return draft.tokens[0].tolist()


def searched(expected: list[int], written: list[int]) -> list[int]:
    """The definition: all that is expected from here on, by plain search."""
    here, stray = 0, 0
    for end in range(1, len(written) + 1):
        on = stray == 0 and expected[here : here + 1] == [written[end - 1]]
        here, stray = (here + 1, 0) if on else (here, stray + 1)
        for size in SIZES:
            ends = [
                place
                for place in range(size, len(expected))
                if size <= end
                and expected[place - size : place] == written[end - size : end]
            ]
            if ends:
                here = next((place for place in ends if place >= here), ends[-1])
                stray = 0
                break
    return expected[here + stray :]


@given(texts, st.lists(few, max_size=20))
def test_draft_tokens_are_those_of_a_plain_search(
    expected: list[int], written: list[int]
) -> None:
    assert propose(sequence(written, expected), 40) == searched(expected, written)


@given(texts, st.lists(st.lists(few, min_size=1, max_size=5), max_size=6))
def test_it_does_not_matter_when_one_asks(
    expected: list[int], grown: list[list[int]]
) -> None:
    one, by = sequence([], expected), PredictedDrafter()
    for new in [[], *grown]:
        one.tokens += new
        assert propose(one, 6, by) == propose(sequence(one.tokens[2:], expected), 6)


def test_it_begins_at_the_beginning_and_ends_with_the_expectation():
    assert propose(sequence([], [1, 2, 3]), 2) == [1, 2]
    assert propose(sequence([1, 2], [1, 2, 3]), 5) == [3]
    assert propose(sequence([1, 2, 3], [1, 2, 3]), 5) == []
    assert propose(sequence([1], [1, 9, 3]), 5) == [9]


def test_a_changed_part_is_left_and_joined_again():
    expected = [1, 2, 3, 4, 5, 6, 7]
    assert propose(sequence([1, 2, 30], expected), 9) == [4, 5, 6, 7]
    assert propose(sequence([1, 2, 30, 31], expected), 9) == [5, 6, 7]
    assert propose(sequence([1, 2, 30, 31, 32, 4], expected), 9) == [5, 6, 7]
    assert propose(sequence([1, 2, 5], expected), 9) == [6, 7]


def test_of_equal_places_the_next_one_is_taken():
    expected = [1, 5, 2, 5, 3, 5, 4, 6]
    assert propose(sequence([1, 5, 2, 5], expected), 1) == [3]
    assert propose(sequence([1, 5, 2, 30, 31, 5], expected), 1) == [3]
    assert propose(sequence([6, 30, 5], expected), 1) == [2]
    assert propose(sequence([1, 5, 2, 5, 3, 5, 4, 30, 5], expected), 1) == [4], (
        "none comes after: the last one"
    )


def test_without_a_prediction_the_prompt_is_expected():
    assert propose(sequence([], [], prompt=(1, 2, 3, 4, 1)), 3) == [2, 3, 4]
    assert propose(sequence([7, 3], [], prompt=(1, 2, 3, 4, 1)), 3) == [4, 1]
    assert propose(sequence([], [], prompt=(1, 2, 3)), 3) == []
    assert propose(sequence([7], [], prompt=(1, 2, 3)), 3) == []


def test_sequences_keep_to_their_own_expectation_and_release_forgets_it():
    by = PredictedDrafter()
    draft = by.propose(
        batch(
            sequence([], [1, 2], id=1),
            sequence([5], [5, 6, 7], id=2),
            sequence([], [8], id=3),
        ),
        [2, 1, 0],
    )
    assert draft.count.tolist() == [2, 1, 0]
    assert draft.tokens.tolist() == [[1, 2], [6, 0], [0, 0]]
    by.release(sequence([], [], id=1))
    assert propose(sequence([], [3], id=1), 1, by) == [3]


def test_probabilities_grow_with_agreement_and_learn_from_failure():
    expected = list(range(10, 30))
    by, fresh = PredictedDrafter(), sequence(expected[:10], expected)
    other = sequence([*expected[:3], 45], expected, id=1)
    sure, lost = (
        by.propose(batch(one), [3]).trees[0].probabilities for one in (fresh, other)
    )
    assert sure[0] > lost[0]
    assert sure == sorted(sure, reverse=True)
    for _ in range(20):
        draft = by.propose(batch(fresh), [3])
        wrong = Verdict.padded(
            torch.full((1, draft.nodes), -1), torch.tensor([0]), torch.tensor([45])
        )
        by.observe(batch(fresh), draft, wrong, Scores(()))
    assert by.propose(batch(fresh), [3]).trees[0].probabilities[0] < 0.3
    assert by.propose(batch(fresh, floor=0.3), [3]).count.tolist() == [0]


def test_only_draft_tokens_that_were_reached_are_learned_from():
    copy, other = (Copy.of(sequence([], [1, 2, 3, 4])) for _ in range(2))
    for one, said in ((copy, [1, 40]), (other, [1, 40, 3, 4])):
        one.follow([40, 41])
        one.propose(4)
        one.learn(said)
    assert [copy.probability(node) for node in range(4)] == [
        other.probability(node) for node in range(4)
    ]
    assert copy.probability(0) > Copy.of(sequence([], [1])).probability(0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_expected_answer_comes_in_few_rounds_and_is_not_changed(temperature):
    params = of_length(32, temperature, seed=3)
    plainly = plain(target(), [Case(prompts()[1], params)])[0]
    edited = tuple(
        token if place % 10 != 5 else 7 for place, token in enumerate(plainly.tokens)
    )
    request = Case(prompts()[1], params)
    loop = engine(target(), drafter("predicted"), 8)
    asked = request.request(target().eos)
    asked.prediction = edited
    loop.add(asked)
    while not loop.idle:
        loop.step()
    assert asked.tokens[asked.prompt :] == plainly.tokens
    assert asked.stats.tokens_per_pass > 3


@given(texts, texts)
def test_agreement_counts_equal_ends(left: list[int], right: list[int]) -> None:
    count = agreement(left, right)
    assert left[len(left) - count :] == right[len(right) - count :]
    assert count in (len(left), len(right)) or left[-count - 1] != right[-count - 1]


def test_finishing_leaves_nothing_behind():
    by = drafter("predicted")
    params = SamplingParams(max_tokens=4, seed=1)
    finish(engine(target(), by, 3), [Case(prompts()[3], params)])
    assert by._copies == {}


def test_source_of_encoder_decoder_is_expected_from_its_start():
    by, params = PredictedDrafter(), SamplingParams(temperature=0)
    one = Request(0, [0, 1], 2, params, 0, source=Source((4, 5, 6, 7, 2)))
    assert propose(one, 3, by) == [4, 5, 6]
    one.tokens += [9, 6]
    assert propose(one, 3, by) == [7, 2]
