"""On-policy data: continuations by the drafter in training (DistillSpec, 2024)."""

from itertools import count

from foreword.budget import FixedBudget
from foreword.draft import method
from foreword.engine import Engine
from foreword.engine.scheduler import Scheduler
from foreword.model import HFModel
from foreword.model.executors.registry import Capability
from foreword.model.loading.in_memory import borrow
from foreword.registry import PLAIN
from foreword.types import Request, SamplingParams
from foreword.verify import rule
from foreword_train.data.packing import Block, Piece, stack

SLOTS = 16
"""Requests written at once."""


class Writer:
    """Writer of continuations by a model in training, by weights, prompts, seed."""

    def __init__(
        self, hf: HFModel, eos: frozenset[int], temperature: float = 1.0
    ) -> None:
        self.hf = hf
        self.eos = eos
        self.temperature = temperature
        self._capability: Capability | None = None

    def rewrite(self, blocks: Block, seed: int) -> Block:
        """Replace the answers by the model's own, each no longer than the one it
        replaces.

        Takes and returns [batch, length]. Of a conversation the first answer is
        rewritten and later turns are dropped.
        """
        rows = [
            Block(*row).pieces
            for row in zip(blocks.tokens, blocks.positions, blocks.learnt, strict=True)
        ]
        pieces = [piece for row in rows for piece in row]
        written = iter(self._continue(pieces, seed))
        length = blocks.tokens.shape[1]
        return stack([Block.of([next(written) for _ in row], length) for row in rows])

    def _continue(self, pieces: list[Piece], seed: int) -> list[Piece]:
        prompts = [_prompt(piece) for piece in pieces]
        with borrow(self.hf, self._capability) as model:
            self._capability = model.capability
            engine = Engine(
                model,
                method(PLAIN).load(None, model, None),
                rule("match"),
                FixedBudget(0),
                Scheduler(slots=SLOTS),
            )
            requests: list[Request] = []
            for number, prompt, piece in zip(count(), prompts, pieces, strict=False):
                params = SamplingParams(
                    temperature=self.temperature, max_tokens=len(piece) - prompt
                )
                tokens = piece.tokens[:prompt]
                requests.append(
                    Request(
                        number, tokens, prompt, params, seed * 4_093 + number, self.eos
                    )
                )
                engine.add(requests[-1])
            while not engine.idle:
                engine.step()
        return [
            Piece(
                list(request.tokens),
                [place >= request.prompt for place in range(len(request.tokens))],
            )
            for request in requests
        ]


def _prompt(piece: Piece) -> int:
    """Return the tokens before the first learnt one; a quarter of a text, which is
    learnt from its beginning.
    """
    first = piece.learnt.index(True)
    return first if first > 1 else max(1, len(piece) // 4)
