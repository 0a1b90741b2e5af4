"""Training context, and the base of every task."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.model import HFModel, Tokenizer
from foreword.model.executors.torch.hooks import listening
from foreword.model.seq2seq import Seq2Seq
from foreword_train.data.packing import Block
from foreword_train.data.pairs import forward_inputs
from foreword_train.losses import Loss, agreement, compare, overlap

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainContext:
    """Target, tokenizer and settings that a task is constructed from."""

    source: str | Path
    """The target's folder or hub id."""
    target: HFModel
    tokenizer: Tokenizer | None
    """None for a target whose tokens are no text."""
    eos: frozenset[int]
    """Ids that end a text."""
    loss: Loss
    temperature: float
    """Temperature of both distributions in the loss."""
    length: int
    """Tokens in a block."""
    seed: int
    counts: Callable[[], Int[Tensor, "vocab"]]
    """Occurrences of each token as a training target, in the first records."""
    trusted: bool = False
    """Allow code of the models' own folders to run."""

    @property
    def start(self) -> int:
        """Tokens that the decoder of an encoder-decoder reads before an answer; 0 for a
        decoder-only target.
        """
        rules = Seq2Seq.of(self.target, str(self.source))
        return 0 if rules is None else len(rules.start)


@dataclass(frozen=True, slots=True)
class TargetOutputs:
    """Hidden states and logits of the frozen target on blocks of records."""

    states: Float[Tensor, "batch length features"]
    logits: Float[Tensor, "batch length vocab"]


class TrainTask(ABC):
    """Base of everything that is trained on a frozen target's outputs; the trainer
    brings data, steps, optimizer, log and checkpoints.

    A method supplies its module, its loss and its metrics.
    """

    module: nn.Module
    """The trained part, on the target's device."""

    def __init__(self, context: TrainContext, module: nn.Module) -> None:
        self.module = module
        self.target = context.target.eval().requires_grad_(False)
        self.temperature = context.temperature
        self._loss: Loss = context.loss
        self._start = context.start

    @abstractmethod
    def loss(self, module: nn.Module, block: Block) -> Float[Tensor, ""]:
        """Return the summed loss; `module`: `self.module`, perhaps for devices."""

    @abstractmethod
    def measure(self, module: nn.Module, block: Block) -> dict[str, Float[Tensor, ""]]:
        """Return metrics on held-out blocks, summed over learnt tokens, names alike."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write a checkpoint that its method can load."""

    @property
    def parameters(self) -> int:
        """Number of parameters that are trained."""
        return sum(
            parameter.numel()
            for parameter in self.module.parameters()
            if parameter.requires_grad
        )

    def to(self, device: torch.device) -> None:
        """Move the frozen target; the trainer moves the module."""
        nn.Module.to(self.target, device)

    def data(self, block: Block, seed: int) -> Block:
        """Return the blocks to train on: these; a task may return the drafter's own
        continuations of them.
        """
        del seed
        return block

    @torch.no_grad()
    def read_target(
        self, block: Block, states: tuple[int, ...]
    ) -> tuple[Block, TargetOutputs]:
        """Return the tokens that the target reads, and its outputs there: logits, and
        the hidden states of these layers, numbered as in transformers.
        """
        read, texts = forward_inputs(block, self._start)
        with listening(self.target, states) as captured:
            logits = self.target(**read).logits
        rows = captured().unflatten(0, texts.tokens.shape)
        return texts, TargetOutputs(rows, logits)

    def compared(
        self, target: Float[Tensor, "rows vocab"], draft: Float[Tensor, "rows vocab"]
    ) -> Float[Tensor, "rows"]:
        """Return the loss of each row."""
        return compare(self._loss, target, draft, self.temperature)


def accepted(
    target: Float[Tensor, "rows vocab"], draft: Float[Tensor, "rows vocab"]
) -> tuple[Float[Tensor, "rows"], Float[Tensor, "rows"]]:
    """Return acceptance at temperature 1 (1 - TV), and at 0 (same argmax)."""
    acceptance = compare(overlap, target, draft)
    return acceptance, agreement(target, draft).float()


def seeded(seed: int, make: Callable[[], Module]) -> Module:
    """Return a module with random weights, which depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
