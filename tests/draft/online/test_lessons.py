"""What is kept of a text that the target writes: its tokens, and laws that are the
target's own.
"""

import pytest
import torch

from foreword.draft.online.replay import (
    KEPT,
    LEARNT,
    WINDOW,
    ReplayBuffer,
    Sample,
    distributions,
    draft_log_probs,
)
from foreword.types import SamplingParams, Sequence

VOCAB = 200


def sequence(prompt: int = 5, id: int = 1) -> Sequence:
    return Sequence(id, list(range(prompt)), prompt, SamplingParams(max_tokens=1000), 0)


def say(
    lessons: ReplayBuffer,
    text: Sequence,
    tokens: list[int],
    logits: torch.Tensor | None = None,
) -> torch.Tensor:
    """One round: the laws are heard, then the tokens are committed."""
    logits = torch.randn(len(tokens), VOCAB) if logits is None else logits
    lessons.record(text, logits)
    text.tokens += tokens
    return logits


def test_a_law_keeps_its_likeliest_outcomes_and_what_is_left():
    logits = 3 * torch.randn(4, VOCAB)
    likeliest, logs = distributions(logits, VOCAB)
    truth = logits.log_softmax(-1)
    assert torch.allclose(logs[:, :-1], truth.topk(KEPT).values, atol=1e-5)
    assert torch.equal(likeliest.long(), truth.topk(KEPT).indices)
    assert torch.allclose(logs.exp().sum(-1), torch.ones(4), atol=1e-5)
    assert torch.allclose(draft_log_probs(logits, likeliest), logs, atol=1e-3)


def test_tokens_that_the_draft_does_not_have_count_as_left():
    logits = torch.randn(3, VOCAB)
    logits[:, 150] = 9.0
    likeliest, logs = distributions(logits, 150)
    assert int(likeliest.max()) < 150
    assert torch.all(logs[:, -1].exp() > 0.9)


def test_every_law_stands_where_its_token_comes_next():
    lessons, text = ReplayBuffer(VOCAB, 4096), sequence()
    said = [say(lessons, text, [50 + i, 60 + i]) for i in range(7)]
    lessons.end(text)
    assert lessons.new(len, 100) == []
    (lesson,) = lessons.new(len, 1)
    # the last law is of the last token
    assert lesson.tokens.tolist() == text.tokens[:-1]
    assert len(lesson.logs) == 14
    likeliest, logs = distributions(torch.cat(said), VOCAB)
    assert torch.equal(lesson.likeliest, likeliest)
    assert torch.equal(lesson.logs, logs)
    assert lessons.new(len, 1) == []
    assert list(lessons.seen) == [lesson]


def test_what_a_text_did_not_say_in_the_end_is_not_learnt():
    lessons, text = ReplayBuffer(VOCAB, 4096), sequence()
    say(lessons, text, [7, 8, 9])
    del text.tokens[-2:]  # a stop rule cut the round after its first token
    lessons.end(text)
    (lesson,) = lessons.new(len, 1)
    assert (lesson.tokens.tolist(), len(lesson.logs)) == ([0, 1, 2, 3, 4], 1)


def test_a_round_that_was_not_heard_parts_a_text_in_two():
    lessons, text = ReplayBuffer(VOCAB, 4096), sequence()
    say(lessons, text, [7, 8])
    text.tokens += [9]
    say(lessons, text, [10])
    lessons.end(text)
    first, second = lessons.new(len, 2)
    assert (first.tokens.tolist(), len(first.logs)) == ([0, 1, 2, 3, 4, 7], 2)
    assert (second.tokens.tolist(), len(second.logs)) == ([0, 1, 2, 3, 4, 7, 8, 9], 1)


def test_long_texts_become_lessons_while_they_are_written():
    lessons, text = ReplayBuffer(VOCAB, 4096), sequence(prompt=150)
    for i in range(LEARNT + 10):
        say(lessons, text, [i % VOCAB])
        lessons.settle()
    assert len(lessons.new(len, 1)) == 1
    lessons.end(text)
    (rest,) = lessons.new(len, 1)
    assert len(rest) <= WINDOW
    assert rest.tokens.tolist() == text.tokens[:-1][-len(rest) :]


@pytest.mark.parametrize("handed", [False, True])
def test_memory_is_bounded_and_the_oldest_goes_first(handed):
    lessons = ReplayBuffer(VOCAB, 600)
    for number in range(40):
        text = sequence(prompt=20 + number % 3, id=number)
        say(lessons, text, [number, number])
        lessons.end(text)
        if handed:
            lessons.new(len, 1)
        assert lessons.held <= 600
    kept = [*lessons.seen, *lessons.new(len, 1)]
    assert sum(map(len, kept)) == lessons.held
    assert [int(lesson.tokens[-1]) for lesson in kept] == list(
        range(40 - len(kept), 40)
    )
    assert len(kept) > 20


def test_a_lesson_cut_short_keeps_some_text_before_what_is_learnt():
    lesson = Sample(
        torch.arange(100),
        torch.zeros(80, 3, dtype=torch.int32),
        torch.arange(80.0)[:, None].expand(80, 4),
    )
    short = lesson.cut(32)
    assert short.tokens.tolist() == list(range(68, 100))
    assert short.logs[:, 0].tolist() == [64.0 + i for i in range(16)]
    assert lesson.cut(100) is lesson
