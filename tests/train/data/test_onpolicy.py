"""Training data written by the draft: prompts, answers, the same by seed."""

import torch

from foreword_train.data.on_policy import Writer
from foreword_train.data.packing import Block, Piece, stack
from pair import llama

CHAT = Piece([5, 6, 7, 8, 9, 10, 11, 12], [False] * 3 + [True] * 3 + [False, True])
TEXT = Piece(list(range(20, 32)), [True] * 12)


def blocks() -> Block:
    return stack([Block.of([CHAT, TEXT], 32), Block.of([TEXT, CHAT], 32)])


def words(block: Block, row: int) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer) of every piece of a row."""
    pieces = Block(block.tokens[row], block.positions[row], block.learnt[row]).pieces
    return [
        (piece.tokens[: (first := piece.learnt.index(True))], piece.tokens[first:])
        for piece in pieces
    ]


def test_prompts_stay_and_answers_are_the_models_own():
    draft = llama(1)
    found = Writer(draft, frozenset(), temperature=0.0).rewrite(blocks(), seed=0)
    assert found.tokens.shape == (2, 32)
    for row, order in enumerate(([CHAT, TEXT], [TEXT, CHAT])):
        for (prompt, answer), piece in zip(words(found, row), order, strict=True):
            assert prompt == piece.tokens[:3]
            expected = draft.generate(
                torch.tensor([prompt]),
                do_sample=False,
                max_new_tokens=len(piece) - 3,
                eos_token_id=None,
                pad_token_id=0,
            )
            assert answer == expected[0, 3:].tolist()


def test_answer_ends_where_the_model_ends_it():
    draft = llama(1)
    free = words(
        Writer(draft, frozenset(), temperature=0.0).rewrite(blocks(), seed=0), 0
    )[1][1]
    end = free[4]
    ended = words(
        Writer(draft, frozenset([end]), temperature=0.0).rewrite(blocks(), seed=0), 0
    )[1][1]
    assert ended == free[: free.index(end) + 1]


def test_answers_follow_the_seed():
    writer = Writer(llama(1), frozenset())
    first, again, other = (writer.rewrite(blocks(), seed).tokens for seed in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_model_is_unchanged():
    draft = llama(1).train()
    before = dict(draft.named_parameters())
    Writer(draft, frozenset()).rewrite(blocks(), seed=0)
    assert draft.training
    assert draft.config._attn_implementation == "sdpa"
    assert all(
        parameter is before[name] for name, parameter in draft.named_parameters()
    )
    draft(torch.tensor([[1, 2, 3]])).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in draft.parameters())
