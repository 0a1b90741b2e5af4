"""Gemma 4's assistants: small models that predict further tokens from the target's own
keys and values (transformers' `Gemma4AssistantForCausalLM`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from foreword.draft.heads.loading import check_sizes
from foreword.draft.heads.reader import HeadExecutor, HeadOutput
from foreword.errors import ModelError
from foreword.model import Model, Read
from foreword.model.executors.torch.packing import Packing
from foreword.model.loading.config import read_config
from foreword.model.loading.hub import kinds
from foreword.model.loading.load import load_weights

SHARED = "set of layer types producing a cache"
"""Part of the error of transformers 5.23.0 for every assistant."""
KINDS = ("Gemma4AssistantForCausalLM", "Gemma4UnifiedAssistantForCausalLM")
"""Architectures of such models."""
Shared = dict[str, list[Float[Tensor, "1 heads length dim"]]]
"""Kind of attention -> keys and values of a text."""


def is_assistant(source: str | Path | None) -> bool:
    """Return whether a folder holds such a model."""
    return source is not None and not set(KINDS).isdisjoint(kinds(source))


class Assistant(HeadExecutor):
    """A model that writes no keys and values: every draft token attends to the
    target's, from the position of the last token of the text.
    """

    def __init__(self, source: str | Path, target: Model) -> None:
        """Raises ModelError where the model and the target do not fit."""
        if not isinstance(target.backend, Packing):
            raise ModelError(
                f"cannot draft with {source}: it reads the target's keys and values, "
                f"and backend '{target.capability.backend}' does not lend them. Use "
                "backend 'pool'"
            )
        config = read_config(source)
        _check(source, config, target)
        self._model: Any = _loaded(source, config, target)
        self._model.to(target.device).eval().requires_grad_(False)
        self._target = target
        self._pages: Packing = target.backend
        self._stored = _stored(target)
        self._texts: dict[int, tuple[int, Shared]] = {}
        """Position of the last token of each text; the keys and values before it."""

    def open(self, id: int, capacity: int) -> int:
        del id, capacity  # it stores nothing
        return 0

    def close(self, id: int) -> None:
        self._texts.pop(id, None)

    @torch.inference_mode()
    def run(self, reads: Sequence[Read], states: Sequence[Tensor]) -> HeadOutput:
        """Return the logits and states of each read; of committed tokens the last one
        alone is read, and its state stands for all of them.
        """
        logits: list[Tensor] = []
        hidden: list[Tensor] = []
        for read, hidden_states in zip(reads, states, strict=True):
            if not read.parents:
                if not read.keep:
                    hidden.append(hidden_states)
                    continue
                self._texts[read.id] = self._text(read)
            count = len(read.tokens) if read.parents else 1
            outputs, state = self._forward(read, hidden_states[-count:], count)
            logits.append(outputs[-read.keep :])
            hidden.append(state.expand(len(read.tokens), -1))
        empty = hidden[0].new_empty(0, self._target.vocab)
        return torch.cat(logits or [empty]), torch.cat(hidden)

    def _forward(
        self,
        read: Read,
        states: Float[Tensor, "rows hidden"],
        rows: int,
    ) -> tuple[Float[Tensor, "rows vocab"], Float[Tensor, "rows hidden"]]:
        """Run the model for the last `rows` tokens, which do not see each other."""
        device = self._target.device
        end, text = self._texts[read.id]
        tokens = torch.tensor(read.tokens[-rows:], device=device)
        embedded = self._target.embed(tokens[:, None])
        hidden = states[:, None].to(embedded.dtype)
        shared = {
            kind: tuple(part.expand(rows, -1, -1, -1) for part in parts)
            for kind, parts in text.items()
        }
        out = self._model(
            inputs_embeds=torch.cat([embedded, hidden], -1),
            position_ids=torch.full((rows, 1), end, device=device),
            shared_kv_states=shared,
        )
        return out.logits[:, 0], out.last_hidden_state[:, 0]

    def _text(self, read: Read) -> tuple[int, Shared]:
        """Return the position of the last token of a text, and the target's keys and
        values before it.
        """
        end = read.past + len(read.tokens)
        pool = self._pages.pool
        rows = torch.tensor(pool[read.id].rows(0, end), device=self._target.device)
        shared = {
            kind: [part[rows].transpose(0, 1)[None] for part in pool.layer(layer)]
            for kind, layer in self._stored.items()
        }
        return end, shared


def _loaded(
    source: str | Path,
    config: Any,
    target: Model,
) -> Any:
    try:
        return load_weights(source, config, target.dtype)
    except ModelError as error:
        if SHARED not in str(error):
            raise
        raise ModelError(
            f"cannot load the assistant {source}: transformers 5.23.0 builds no model "
            "whose layers all share keys and values. Run pip install "
            "'transformers>=5.24'"
        ) from error


def _stored(target: Model) -> dict[str, int]:
    """Return the last layer of each kind of attention that writes keys and values."""
    config = target.hf.config.get_text_config()
    count = config.num_hidden_layers - config.num_kv_shared_layers
    return {kind: layer for layer, kind in enumerate(config.layer_types[:count])}


def _check(
    source: str | Path,
    config: Any,
    target: Model,
) -> None:
    """Raise ModelError where an assistant was made for another target."""
    text = target.hf.config.get_text_config()
    sizes = {
        "backbone_hidden_size": (config.backbone_hidden_size, text.hidden_size),
        "vocab_size": (config.get_text_config().vocab_size, text.vocab_size),
    }
    if not hasattr(text, "num_kv_shared_layers"):
        raise ModelError(
            f"cannot use {source} with {target.name}: the target is not a Gemma 4. "
            "Use another method"
        )
    check_sizes(source, target.hf.config, sizes)
