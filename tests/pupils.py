"""Heads that learnt a little of what the family's target says to the prompts of the tests. Test code."""

import torch
from torch import nn

import starter
from foreword.model import load_tokenizer
from foreword.train.lm import load
from foreword.train.losses import forward_kl
from foreword.train.pack import Block, Piece, stack
from foreword.train.pupil import Pupil, Setting
from foreword.train.students import Student

ROUNDS, RATE, LENGTH = 8, 4e-3, 64


def taught(student: Student, texts: tuple[tuple[int, ...], ...]) -> Pupil:
    """A pupil of the family's target after a few rounds over these texts, which it knows half by heart then."""
    target = load(starter.target(), torch.float32)
    with torch.random.fork_rng(devices=[]):
        setting = Setting(
            source=starter.target(), target=target, tokenizer=load_tokenizer(starter.target()), eos=frozenset(),
            loss=forward_kl, temperature=1.0, length=LENGTH, seed=0,
            counts=lambda: torch.tensor(sum(texts, ())).bincount(minlength=target.config.vocab_size),
        )  # fmt: skip
        pupil = student.begin(setting)
        torch.manual_seed(0)
        pieces = [Piece(list(text)[:LENGTH], [True] * min(len(text), LENGTH)) for text in texts]
        blocks = stack([Block.of([piece], LENGTH) for piece in pieces])
        learning = [parameter for parameter in pupil.module.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(learning, lr=RATE)
        for turn in range(ROUNDS):
            loss = pupil.loss(pupil.module, pupil.data(blocks, turn)) / blocks.learnt.sum()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(learning, 1.0)
            optimizer.step()
    return pupil
