"""Several heads on the target's last hidden state, each for a token further ahead (Medusa, arXiv 2401.10774).

Knows the heads and their checkpoints; how guesses are read from a block is in block.py.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from itertools import islice
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from foreword.draft.base import Source
from foreword.draft.block import BlockDrafter, Blocks, Wanted, fitting, folder
from foreword.errors import ModelError
from foreword.model import Model, Read, Tokenizer
from foreword.model.checkpoint import Checkpoint
from foreword.model.linear import MIN_ROWS

ARCHITECTURE = "MedusaModel"


class Residual(nn.Module):
    """x + SiLU(W x + b), which is x at first."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows hidden"]:
        return x + F.silu(self.linear(x))


class MedusaHeads(nn.ModuleList):
    """Head k foresees the token k + 1 after the one whose hidden state it sees; the next is the target's own to say.

    The names of its tensors are those of the original: `k.0.linear.weight`, and `k.1.weight` where a head has an output
    matrix of its own. Where none has, all speak through the target's.
    """

    def __init__(self, heads: int, layers: int, hidden: int, vocab: int, *, own: bool) -> None:
        def one() -> nn.Sequential:
            last = [nn.Linear(hidden, vocab, bias=False)] if own else []
            return nn.Sequential(*(Residual(hidden) for _ in range(layers)), *last)

        super().__init__(one() for _ in range(heads))
        self.depth, self.hidden_size, self.vocab, self.own = layers, hidden, vocab, own

    def forward(self, x: Float[Tensor, "rows hidden"]) -> Float[Tensor, "rows heads hidden"]:
        """What each head thinks of hidden states that are normed already."""
        thoughts = []
        for head in self._heads:
            thought = x
            for layer in islice(head, self.depth):  # without the output matrix that may come last
                thought = layer(thought)
            thoughts.append(thought)
        return torch.stack(thoughts, 1)

    def speak(self, hidden: Float[Tensor, "rows hidden"], head: Int[Tensor, "rows"]) -> Float[Tensor, "rows vocab"]:
        """What heads with output matrices of their own say; row i is a thought of head[i]."""
        places = [(head == number).nonzero().flatten() for number in range(len(self))]
        said = [one[-1](hidden[rows]) for one, rows in zip(self._heads, places, strict=True)]
        return torch.cat(said)[torch.cat(places).argsort()]

    @property
    def _heads(self) -> List[nn.Sequential]:
        return cast("List[nn.Sequential]", list(self))

    @classmethod
    def read(cls, found: Checkpoint) -> MedusaHeads:
        """From a checkpoint. Raises ModelError for another kind, or where a part is missing."""
        config, first = found.config, found.tensors.get("0.0.linear.weight")
        heads, layers = config.get("medusa_num_heads"), config.get("medusa_num_layers", 1)
        if not isinstance(heads, int) or not isinstance(layers, int) or min(heads, layers) < 1 or first is None:
            raise ModelError(
                f"{found.source} holds no {ARCHITECTURE}: config.json must say medusa_num_heads, and there must be a "
                "tensor 0.0.linear.weight"
            )
        last = found.tensors.get(f"0.{layers}.weight")
        vocab = len(last) if last is not None else config.get("vocab_size")
        if not isinstance(vocab, int):
            raise ModelError(f"{found.source}: config.json must say vocab_size")
        made = cls(heads, layers, first.shape[0], vocab, own=last is not None)
        found.fill(made)
        return made

    def dump(self, dtype: torch.dtype) -> Checkpoint:
        """The heads under the original's names."""
        config = {
            "architectures": [ARCHITECTURE],
            "medusa_num_heads": len(self),
            "medusa_num_layers": self.depth,
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab,
            "dtype": str(dtype).removeprefix("torch."),
        }
        tensors = {name: tensor.detach().to("cpu", dtype) for name, tensor in self.state_dict().items()}
        return Checkpoint("", config, tensors)


class MedusaBlocks(Blocks):
    """A block is what the heads say of the last token that the target has read."""

    def __init__(self, heads: MedusaHeads, target: Model) -> None:
        super().__init__(heads, target, len(heads))
        self._heads, self._dtype = heads, target.dtype
        self._last: dict[int, Float[Tensor, "hidden"]] = {}

    def close(self, id: int) -> None:
        super().close(id)
        self._last.pop(id, None)

    @torch.inference_mode()
    def compute(self, wanted: List[Wanted]) -> Float[Tensor, "wanted guesses vocab"]:
        self._last |= {one.id: one.states[-1] for one in wanted if len(one.states)}
        states = torch.stack([self._last[one.id] for one in wanted]).to(self._dtype)
        padded = F.pad(states, (0, 0, 0, max(0, MIN_ROWS - len(states))))
        thought = self._heads(padded).flatten(0, 1)
        if self._heads.own:
            said = self._heads.speak(thought, torch.arange(self.guesses, device=thought.device).repeat(len(padded)))
        else:
            said = self.target.speak(thought)
        return said.unflatten(0, (len(padded), -1))[: len(wanted)].float()

    def ahead(self, read: Read) -> Float[Tensor, "guesses vocab"]:
        return self.block(read.id)


class MedusaDrafter(BlockDrafter):
    """Grows trees from what each head says."""

    summary = "heads on the target's last hidden state foresee a token each"

    @classmethod
    def load(cls, source: Source, target: Model, tokenizer: Tokenizer | None) -> MedusaDrafter:
        del tokenizer  # heads have none of their own
        heads = MedusaHeads.read(folder(source))
        fitting(str(source), target.hf.config, hidden=heads.hidden_size, vocab=heads.vocab)
        return cls(MedusaBlocks(heads, target), (target.hf.config.get_text_config().num_hidden_layers,))
