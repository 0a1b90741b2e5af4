"""What makes a step of gradients: AdamW alone, or Muon for the matrices inside a network and AdamW for the rest.

Knows modules and torch's optimisers; knows nothing about what is trained, or for how long.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from foreword.errors import InvalidRequest

ADAMW, MUON = "adamw", "muon"
KINDS = (ADAMW, MUON)
BETAS = (0.9, 0.95)
SPEAKS = ("lm_head.weight", "markov_w2.weight")
"""Matrices whose outputs are tokens: tables rather than maps, and so not Muon's."""


def known(kind: str) -> None:
    """Raises InvalidRequest for an optimiser that is not here."""
    if kind not in KINDS:
        raise InvalidRequest(f"there is no optimizer {kind!r}; there are {' and '.join(KINDS)}")


class Optimizer:
    """AdamW (Loshchilov and Hutter 2019); or Muon (Jordan et al. 2024), scaled to AdamW's rates (arXiv 2502.16982).

    Matrices decay, vectors do not; under Muon tables do not either.
    """

    def __init__(self, kind: str, module: nn.Module, weight_decay: float) -> None:
        """Raises InvalidRequest for an optimiser that is not here."""
        known(kind)
        learning = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        matrices = {name for name, weight in learning.items() if weight.dim() == 2}
        inside = matrices - set(_tables(module)) if kind == MUON else set[str]()
        decaying = matrices if kind == ADAMW else set[str]()
        groups = [
            {"params": [learning[name] for name in learning if name in decaying], "weight_decay": weight_decay},
            {"params": [learning[name] for name in learning if name not in decaying | inside], "weight_decay": 0.0},
        ]
        self._parts: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, betas=BETAS)]
        if inside:
            mapped = [learning[name] for name in learning if name in inside]
            self._parts.append(torch.optim.Muon(mapped, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"))

    def step(self, rate: float) -> None:
        """Move along the gradients at this learning rate, and forget them."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """What must be known to go on."""
        return [part.state_dict() for part in self._parts]

    def restore(self, state: list[dict[str, Any]]) -> None:
        for part, before in zip(self._parts, state, strict=True):
            part.load_state_dict(before)


def _tables(module: nn.Module) -> Iterable[str]:
    """Names of parameters that are looked up by a token, or speak of tokens; one that is shared counts as both."""
    looked_up = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)}
    return [name for name, weight in module.named_parameters() if id(weight) in looked_up or name.endswith(SPEAKS)]
