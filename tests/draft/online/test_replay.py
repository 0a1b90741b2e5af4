"""What is kept of a text that the target writes: its tokens, and distributions that are
the target's own.
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
from foreword.types import Request, SamplingParams

VOCAB = 200


def sequence(prompt: int = 5, id: int = 1) -> Request:
    return Request(id, list(range(prompt)), prompt, SamplingParams(max_tokens=1000), 0)


def say(
    buffer: ReplayBuffer,
    text: Request,
    tokens: list[int],
    logits: torch.Tensor | None = None,
) -> torch.Tensor:
    """One round: the distributions are read, then the tokens are committed."""
    logits = torch.randn(len(tokens), VOCAB) if logits is None else logits
    buffer.record(text, logits)
    text.tokens += tokens
    return logits


def test_distribution_keeps_its_likeliest_outcomes_and_what_is_left():
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


def test_every_distribution_stands_where_its_token_comes_next():
    buffer, text = ReplayBuffer(VOCAB, 4096), sequence()
    said = [say(buffer, text, [50 + i, 60 + i]) for i in range(7)]
    buffer.end(text)
    assert buffer.new(len, 100) == []
    (sample,) = buffer.new(len, 1)
    # the last distribution is of the last token
    assert sample.tokens.tolist() == text.tokens[:-1]
    assert len(sample.logs) == 14
    likeliest, logs = distributions(torch.cat(said), VOCAB)
    assert torch.equal(sample.likeliest, likeliest)
    assert torch.equal(sample.logs, logs)
    assert buffer.new(len, 1) == []
    assert list(buffer.seen) == [sample]


def test_what_text_did_not_say_in_end_is_not_learnt():
    buffer, text = ReplayBuffer(VOCAB, 4096), sequence()
    say(buffer, text, [7, 8, 9])
    del text.tokens[-2:]  # a stop rule cut the round after its first token
    buffer.end(text)
    (sample,) = buffer.new(len, 1)
    assert (sample.tokens.tolist(), len(sample.logs)) == ([0, 1, 2, 3, 4], 1)


def test_missed_round_splits_a_text():
    buffer, text = ReplayBuffer(VOCAB, 4096), sequence()
    say(buffer, text, [7, 8])
    text.tokens += [9]
    say(buffer, text, [10])
    buffer.end(text)
    first, second = buffer.new(len, 2)
    assert (first.tokens.tolist(), len(first.logs)) == ([0, 1, 2, 3, 4, 7], 2)
    assert (second.tokens.tolist(), len(second.logs)) == ([0, 1, 2, 3, 4, 7, 8, 9], 1)


def test_long_texts_become_samples_early():
    buffer, text = ReplayBuffer(VOCAB, 4096), sequence(prompt=150)
    for i in range(LEARNT + 10):
        say(buffer, text, [i % VOCAB])
        buffer.settle()
    assert len(buffer.new(len, 1)) == 1
    buffer.end(text)
    (rest,) = buffer.new(len, 1)
    assert len(rest) <= WINDOW
    assert rest.tokens.tolist() == text.tokens[:-1][-len(rest) :]


@pytest.mark.parametrize("handed", [False, True])
def test_memory_is_bounded_and_the_oldest_goes_first(handed):
    buffer = ReplayBuffer(VOCAB, 600)
    for number in range(40):
        text = sequence(prompt=20 + number % 3, id=number)
        say(buffer, text, [number, number])
        buffer.end(text)
        if handed:
            buffer.new(len, 1)
        assert buffer.held <= 600
    kept = [*buffer.seen, *buffer.new(len, 1)]
    assert sum(map(len, kept)) == buffer.held
    assert [int(sample.tokens[-1]) for sample in kept] == list(
        range(40 - len(kept), 40)
    )
    assert len(kept) > 20


def test_sample_cut_short_keeps_some_text_before_what_is_learnt():
    sample = Sample(
        torch.arange(100),
        torch.zeros(80, 3, dtype=torch.int32),
        torch.arange(80.0)[:, None].expand(80, 4),
    )
    short = sample.cut(32)
    assert short.tokens.tolist() == list(range(68, 100))
    assert short.logs[:, 0].tolist() == [64.0 + i for i in range(16)]
    assert sample.cut(100) is sample
