"""Trainable drafters of the bundled target, after a few rounds over its own answers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

import starter
from foreword.model import load_tokenizer
from foreword_train.data.packing import Block, Piece, stack
from foreword_train.losses import forward_kl
from foreword_train.methods.lm import load
from foreword_train.registry import TrainOptions
from foreword_train.task import TrainContext, TrainTask

ROUNDS, RATE, LENGTH = 8, 5e-3, 48


def context(target: PreTrainedModel, tokenizer: Any, **changes: Any) -> TrainContext:
    """Return what a trainable finds beside this target, but for the changes."""
    usual = dict(
        source="",
        target=target,
        tokenizer=tokenizer,
        eos=frozenset(),
        loss=forward_kl,
        temperature=1.0,
        length=64,
        seed=0,
        counts=lambda: torch.arange(target.config.vocab_size),
    )
    return TrainContext(**usual | changes)


def trained(options: TrainOptions, texts: tuple[tuple[int, ...], ...]) -> TrainTask:
    """Train a drafter until it predicts about a third of these texts."""
    target = load(starter.target(), torch.float32)
    with torch.random.fork_rng(devices=[]):
        trainable = options.begin(
            context(
                target,
                load_tokenizer(starter.target()),
                source=starter.target(),
                length=LENGTH,
                counts=lambda: torch.tensor(sum(texts, ())).bincount(
                    minlength=target.config.vocab_size
                ),
            )
        )
        torch.manual_seed(0)
        cut = [list(text)[:LENGTH] for text in texts]
        pieces = [Piece(text, [True] * len(text)) for text in cut]
        blocks = stack([Block.of([piece], LENGTH) for piece in pieces])
        parameters = trainable.module.parameters()
        learning = [one for one in parameters if one.requires_grad]
        optimizer = torch.optim.AdamW(learning, lr=RATE)
        for turn in range(ROUNDS):
            data = trainable.data(blocks, turn)
            loss = trainable.loss(trainable.module, data) / blocks.learnt.sum()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(learning, 1.0)
            optimizer.step()
    return trainable


def pairs(start: Sequence[int], *lengths: tuple[int, int]) -> list[Piece]:
    """Return random sources and answers of these lengths; `start` begins an answer."""
    draw = torch.Generator().manual_seed(0)
    made = []
    for source, answer in lengths:
        tokens = torch.randint(60, 310, (source + answer,), generator=draw).tolist()
        learnt = [False] * (source + len(start)) + [True] * answer
        made.append(Piece([*tokens[:source], *start, *tokens[source:]], learnt))
    return made
