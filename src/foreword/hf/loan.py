"""Somebody else's model for the length of one call, and what is worth remembering of it until the next.

Remembers facts (how it can be driven, what a forward costs), never weights: packing them again costs about four
one-token forwards, and a stale copy would be a wrong answer (`weight.data += …` leaves no trace to check).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

from foreword.errors import words
from foreword.model import Capability, Model, Tokenizer, borrow, measure
from foreword.model.lexicon import Lexicon
from foreword.model.translation import Translation


@dataclass(slots=True)
class Acquaintance:
    """What is remembered of a model. Refers neither to it nor to its weights, so that both can be freed."""

    lock: Any = field(default_factory=RLock)
    """One call at a time: a model on loan cannot be used by others."""
    shape: tuple[object, ...] = ()
    capability: Capability | None = None
    drafts: dict[str, Model] = field(default_factory=dict)
    """Draft models loaded for it, by folder or hub id."""
    refused: str | None = None
    """Why it cannot be driven, where that was found out."""
    _spoken: tuple[tuple[object, ...], tuple[Lexicon, Lexicon, Translation] | None] | None = None
    _cost: dict[int, float] | None = None

    def meet(self, hf: PreTrainedModel) -> None:
        """Forget everything if the model is not built as it was: other layers, dtype, device or configuration."""
        weight = next(hf.parameters())
        layers = tuple((name, type(module)) for name, module in hf.named_modules())
        shape = (layers, weight.dtype, weight.device, hf.config.to_json_string())
        if shape != self.shape:
            self.shape, self.capability, self._cost = shape, None, None
            self.refused = self._spoken = None
            self.drafts.clear()

    def translation(
        self, target: tuple[Tokenizer, int], draft: tuple[Tokenizer, int]
    ) -> tuple[Lexicon, Lexicon, Translation] | None:
        """Compare two tokenizers, each with the size of its model's vocabulary; None where every token is the same.

        The last comparison is kept: it reads whole vocabularies. Raises VocabularyMismatch where nothing is shared.
        """
        asked = (*target, *draft)
        if self._spoken is None or self._spoken[0] != asked:
            lexicons = Lexicon(*target), Lexicon(*draft)
            same = target[0].get_vocab() == draft[0].get_vocab()
            self._spoken = asked, None if same else (*lexicons, Translation.between(*lexicons))
        return self._spoken[1]

    def cost(self, model: Model) -> dict[int, float]:
        """Seconds of a forward by its rows, measured the first time."""
        if self._cost is None:
            self._cost = measure(model)
        return self._cost

    def draft(self, source: str, target: Model | PreTrainedModel) -> Model:
        """The draft model of that name, loaded the first time."""
        if source not in self.drafts:
            self.drafts[source] = Model.load(source, dtype=target.dtype, device=str(target.device))
            self.drafts[source].lighten()
        return self.drafts[source]


_KNOWN: WeakKeyDictionary[PreTrainedModel, Acquaintance] = WeakKeyDictionary()
_GUARD = Lock()


@contextmanager
def alone(*models: PreTrainedModel) -> Iterator[None]:
    """While inside, nobody else borrows any of these. Whoever needs several asks here first.

    They are taken in one order, so that two who want the same models never wait for each other.
    """
    with ExitStack() as held:
        for known in sorted(map(_known, models), key=id):
            held.enter_context(known.lock)
        yield


@contextmanager
def loan(hf: PreTrainedModel) -> Iterator[tuple[Model, Acquaintance]]:
    """Borrow a model: probed the first time only, and given back as it was, whatever happens."""
    with alone(hf):
        known = _known(hf)
        known.meet(hf)
        with borrow(hf, known.capability) as model:
            known.capability = model.capability
            yield model, known


def acquaintance(hf: PreTrainedModel) -> Acquaintance:
    """What is remembered of a model, after it was tried once: `refused` says why it cannot be driven."""
    known = _known(hf)
    with alone(hf):
        known.meet(hf)
        if known.capability is None and known.refused is None:
            try:
                with borrow(hf) as model:
                    known.capability = model.capability
            except Exception as error:  # noqa: BLE001 - transformers serves it, whatever is wrong
                known.refused = words(error)
    return known


def _known(hf: PreTrainedModel) -> Acquaintance:
    with _GUARD:
        return _KNOWN.setdefault(hf, Acquaintance())
