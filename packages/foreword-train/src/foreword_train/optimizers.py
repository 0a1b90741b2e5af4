"""Optimisers: AdamW, or Muon for inner matrices and AdamW for the rest."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from foreword.errors import InvalidRequest

ADAMW, MUON = "adamw", "muon"
KINDS = (ADAMW, MUON)
BETAS = (0.9, 0.95)
OUTPUTS = ("lm_head.weight", "markov_w2.weight")
"""Matrices whose outputs are tokens: tables rather than maps, so AdamW trains them."""


def check_kind(kind: str) -> None:
    """Raise InvalidRequest for an unknown optimiser."""
    if kind not in KINDS:
        raise InvalidRequest(
            f"cannot use optimizer {kind!r}: it does not exist. Choose "
            f"{' or '.join(KINDS)}"
        )


class Optimizer:
    """AdamW (Loshchilov and Hutter 2019); or Muon (Jordan et al. 2024), scaled to
    AdamW's rates (arXiv 2502.16982).

    Matrices decay, vectors do not; under Muon tables do not either.
    """

    def __init__(self, kind: str, module: nn.Module, weight_decay: float) -> None:
        """Raises InvalidRequest for an unknown optimiser."""
        check_kind(kind)
        learning = {
            name: weight
            for name, weight in module.named_parameters()
            if weight.requires_grad
        }
        matrices = {name for name, weight in learning.items() if weight.dim() == 2}
        inside = matrices - set(_tables(module)) if kind == MUON else set[str]()
        decaying = matrices if kind == ADAMW else set[str]()
        groups = [
            {
                "params": [learning[name] for name in learning if name in decaying],
                "weight_decay": weight_decay,
            },
            {
                "params": [
                    learning[name] for name in learning if name not in decaying | inside
                ],
                "weight_decay": 0.0,
            },
        ]
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(groups, betas=BETAS)
        ]
        if inside:
            mapped = [learning[name] for name in learning if name in inside]
            self._optimizers.append(
                torch.optim.Muon(
                    mapped, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"
                )
            )

    def step(self, rate: float) -> None:
        """Update the weights at this learning rate and clear the gradients."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """Return the state needed to resume."""
        return [optimizer.state_dict() for optimizer in self._optimizers]

    def restore(self, state: list[dict[str, Any]]) -> None:
        for optimizer, before in zip(self._optimizers, state, strict=True):
            optimizer.load_state_dict(before)


def _tables(module: nn.Module) -> Iterable[str]:
    """Return parameters indexed by tokens or output tokens; a tied one is both."""
    looked_up = {
        id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)
    }
    return [
        name
        for name, weight in module.named_parameters()
        if id(weight) in looked_up or name.endswith(OUTPUTS)
    ]
