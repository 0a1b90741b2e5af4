"""A tiny target, data and a loop that trains beside it, for tests of training."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from foreword.draft.tree.drafter import ModelDrafter
from foreword.model import Model, Read
from foreword.types import Request, SamplingParams
from foreword_train.data.packing import Block, Packer, Piece, stack
from foreword_train.data.records import Record
from foreword_train.devices import Devices, OneDevice
from foreword_train.job import Job
from foreword_train.log import Row
from foreword_train.losses import LOSSES
from foreword_train.registry import TrainOptions
from foreword_train.task import TrainContext, TrainTask
from foreword_train.trainer import Trainer, TrainingConfig
from running import tokenizer
from trainables import context

VOCAB = 320


def random_pieces(seed: int, *lengths: int) -> list[Piece]:
    generator = torch.Generator().manual_seed(seed)
    return [
        Piece(
            torch.randint(1, VOCAB, (length,), generator=generator).tolist(),
            [False] * 2 + [True] * (length - 2),
        )
        for length in lengths
    ]


def llama(seed: int = 0, layers: int = 1, hidden: int = 32) -> LlamaForCausalLM:
    """A model with random weights, float32."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        eos_token_id=0,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)


def setting(
    target: LlamaForCausalLM, loss: str = "forward-kl", temperature: float = 1.0
) -> TrainContext:
    """What a trainable finds beside this target; the tokenizer is never read."""
    return context(
        target,
        tokenizer(),
        loss=LOSSES[loss],
        temperature=temperature,
        counts=lambda: torch.arange(VOCAB).flip(0),
    )


def job(options: TrainOptions, target: Path, data: Path, out: Path, **more: Any) -> Job:
    """A job of short pieces of texts, on the CPU and in float32."""
    usual = dict(length=64, device="cpu", bf16=False)
    paths = dict(target=str(target), data=(data,), out=out)
    return Job(options=options, **paths | usual | more)


class Bytes:
    """Stands for an encoder: a text's bytes are its tokens, all of them learnt."""

    def __call__(self, record: Record) -> Piece:
        tokens = list(record.text.encode())
        return Piece(tokens, [True] * len(tokens))


class Copying:
    """The smallest task: the next token from this one, with dropout."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.module = nn.Sequential(
            nn.Embedding(VOCAB, 16), nn.Dropout(0.2), nn.Linear(16, VOCAB)
        )
        self.seeds: list[int] = []

    def to(self, device: torch.device) -> None:
        pass

    def data(self, block: Block, seed: int) -> Block:
        self.seeds.append(seed)
        return block

    def loss(self, module: nn.Module, block: Block) -> Float[Tensor, ""]:
        learnt = block.learnt[:, 1:]
        logits = module(block.tokens[:, :-1])[learnt]
        return nn.functional.cross_entropy(
            logits, block.tokens[:, 1:][learnt], reduction="sum"
        )

    def measure(self, module: nn.Module, block: Block) -> dict[str, Float[Tensor, ""]]:
        return {"loss": self.loss(module, block)}


TEXTS = [
    Record(
        text=f"{number} times {number} is {number * number}; so they say", source="sums"
    )
    for number in range(40)
]


def trainer(
    folder: Path,
    recipe: TrainingConfig,
    *,
    task: Copying | None = None,
    devices: Devices | None = None,
) -> Trainer:
    """A trainer of the smallest task."""
    return Trainer(
        task or Copying(),
        Packer(Bytes(), TEXTS[:30], 64, recipe.seed),
        recipe,
        folder=folder,
        devices=devices or OneDevice(torch.device("cpu")),
        held_out=Packer(Bytes(), TEXTS[30:], 64).all(9),
    )


def losses(rows: list[Row]) -> list[float | None]:
    return [row.loss for row in rows]


def learn(
    task: TrainTask, folder: Path, *, steps: int, rate: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Train over the texts; return what held-out texts measure before and after."""
    trainer = Trainer(
        task,
        Packer(Bytes(), TEXTS[:30], 64),
        TrainingConfig(
            steps=steps, batch=2, warmup=3, learning_rate=rate, evaluate=steps
        ),
        folder=folder,
        devices=OneDevice(torch.device("cpu")),
        held_out=Packer(Bytes(), TEXTS[30:], 64).all(4),
    )
    first, last = (row.held_out for row in trainer.run() if row.held_out)
    return first, last


def served_logits(
    drafter: ModelDrafter, target: Model, tokens: list[int], end: int, steps: int
) -> list[Tensor]:
    """Return a drafter's logits after `end` tokens, then along a chain of the next."""
    params = SamplingParams(max_tokens=20)
    request = Request(1, tokens[: end + 1], 2, params, seed=0)
    target.open(1, 32)
    text = Read(1, 0, tokens[:end], keep=0)
    _, states = target.read_hidden([text], drafter.hidden_layers)
    target.close(1)
    drafter.on_hidden_states(request, 0, states)
    read = drafter.prefill(request)
    logits = [drafter.logits([read])]
    past = read.past + len(read.tokens)
    for step in range(steps - 1):
        token, parents = tokens[end + 1 + step], list(range(-1, step))
        logits.append(drafter.logits([Read(1, past, [token], parents, 1, held=step)]))
    return logits


def check_served(task: Any, drafter_of: Callable[[Model], ModelDrafter]) -> None:
    """A layer drafts the tokens of its training: the text, then a chain."""
    (piece,) = random_pieces(3, 14)
    with torch.no_grad():
        steps = task._steps(task.module, stack([Block.of([piece], 14)]))
        trained = [step.draft for step in steps]
    target = Model(llama(0, layers=3))
    for end in (3, 8):
        drafter = drafter_of(target)
        served = served_logits(drafter, target, piece.tokens, end, len(trained))
        for logits, rows in zip(served, trained, strict=True):
            # The row of token end - 1 and its follower; rows begin where a learnt token
            # is two places and a step ahead.
            torch.testing.assert_close(logits[0], rows[end - 1], atol=1e-4, rtol=1e-4)


def check_packed(task: TrainTask, pieces: list[Piece]) -> None:
    """Records that share a block are learnt as if each were alone."""
    together = task.loss(task.module, stack([Block.of(pieces, 32)]))
    blocks = [Block.of([piece], len(piece)) for piece in pieces]
    alone = sum(task.loss(task.module, stack([block])) for block in blocks)
    torch.testing.assert_close(together, alone)
    assert together > 1


def two_records() -> Block:
    """Return two records side by side, and padding."""
    learnt = [False] * 2 + [True] * 6
    pieces = [Piece(list(range(start, start + 8)), learnt) for start in (10, 50)]
    return stack([Block.of(pieces, 20)])
