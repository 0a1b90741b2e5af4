"""The target without some sublayers as its own drafter (Draft & Verify, early exit)."""

from collections.abc import Sequence
from pathlib import Path

from foreword.draft.base import Source
from foreword.draft.self_speculative.base import SPARE, SelfDrafter
from foreword.draft.self_speculative.exits import (
    check_exit,
    given_exit,
    read_first,
    trained_exits,
)
from foreword.errors import InvalidRequest
from foreword.model import HFModel, Model, Tokenizer
from foreword.model.layers import layer_count
from foreword.model.skip import LayerSkip
from foreword.model.view import view
from foreword.registry import OWN_METHODS
from foreword.types import Batch, Draft, DraftTree, Request

NAME = "layers"
"""Name of the method."""


def exit_after(layers: int, of: int) -> LayerSkip:
    """Return the skip of all but the first `layers` (LayerSkip, Elhoushi 2024)."""
    rest = frozenset(range(layers, of))
    return LayerSkip(rest, rest)


def default(target: Model) -> LayerSkip:
    """Return what is skipped where nothing is said: the layers after the
    middle exit among the exits of its training; else the attention of every other
    layer between the first and the last two.
    """
    layers = layer_count(target.hf.config)
    exits = trained_exits(target)
    if exits:
        return exit_after(exits[len(exits) // 2], layers)
    return LayerSkip(frozenset(range(2, layers - 2, 2)))


class LayersDrafter(SelfDrafter):
    """Drafter that runs the target without some sublayers."""

    about = OWN_METHODS[NAME]

    def __init__(self, target: Model, skip: LayerSkip, *, spare: int = SPARE) -> None:
        """Take the target and the sublayers that are skipped; with `spare` = 0 it has a
        KV cache of its own.
        """
        super().__init__(view(target, skip=skip, spare=spare), shares=spare > 0)
        self.skip = skip

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> "LayersDrafter":
        """Leave early, as a `source` such as exit:4 says; None = `default`."""
        del tokenizer  # it is the target's own
        skip = default(target) if source is None else _chosen(source, target)
        return cls(target, skip)

    def propose(self, batch: Batch, nodes: Sequence[int]) -> Draft:
        draft = super().propose(batch, nodes)
        if draft.probs is not None or draft.chain:
            return draft
        return read_first(draft, [self._read(one) for one in batch.requests])

    def _read(self, request: Request) -> DraftTree:
        """Return the draft tokens that were read after a text, in this order."""
        memory = self._memories.get(request.id)
        return DraftTree() if memory is None else memory.tree


def _chosen(source: str | Path | HFModel | Model, target: Model) -> LayerSkip:
    """Return what an exit skips. Raises InvalidRequest for any other draft."""
    number = given_exit(source)
    if number is None:
        raise InvalidRequest(
            "cannot use this draft: the method takes no draft model and no file. "
            "Give an exit such as draft='exit:4', or none"
        )
    layers = layer_count(target.hf.config)
    last = check_exit(number, layers, target.name, f"draft={str(source)!r}")
    return exit_after(last, layers)
