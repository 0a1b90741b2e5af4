"""A caller's model, borrowed for one call, and facts about it that are kept until the
next call.

Records hold facts (the backend, the cost of a forward), never weights. Packing weights
again costs about four one-token forwards, and a stale copy would give wrong output
(`weight.data += …` leaves no trace to check).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock, RLock
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

from foreword.budget import DraftBudget
from foreword.draft.cross_vocab.token_map import TokenMap
from foreword.draft.cross_vocab.vocabulary import Vocabulary
from foreword.errors import words
from foreword.model import Capability, Model, Tokenizer, measure
from foreword.model.loading.in_memory import borrow

Key = tuple[object, ...]
"""Settings of calls that share one budget: method, drafter, rule and the like."""


@dataclass(slots=True)
class ModelRecord:
    """Cached facts about a model, which keep neither it nor its weights alive."""

    lock: Any = field(default_factory=RLock)
    """Held during a call: a borrowed model cannot be used by others."""
    shape: tuple[object, ...] = ()
    capability: Capability | None = None
    sees: bool = False
    """Whether scores after an image were compared with the model's own."""
    drafts: dict[str, Model] = field(default_factory=dict)
    """Draft models loaded for it, by folder or hub id."""
    refused: str | None = None
    """Why no backend can run it; None if one can or if it was not tried."""
    _translation: (
        tuple[tuple[object, ...], tuple[Vocabulary, Vocabulary, TokenMap] | None] | None
    ) = None
    _cost: dict[int, float] | None = None
    _budgets: WeakKeyDictionary[PreTrainedModel, dict[Key, DraftBudget]] = field(
        default_factory=WeakKeyDictionary
    )
    """By the draft model in memory, or by this model if there is none."""

    def refresh(self, hf: PreTrainedModel) -> None:
        """Clear the record if the model's layers, dtype, device or config changed."""
        weight = next(hf.parameters())
        layers = tuple((name, type(module)) for name, module in hf.named_modules())
        shape = (layers, weight.dtype, weight.device, hf.config.to_json_string())
        if shape != self.shape:
            self.shape = shape
            self.capability = None
            self._cost = None
            self.refused = self._translation = None
            self.sees = False
            self.drafts.clear()
            self._budgets.clear()

    def translation(
        self, target: tuple[Tokenizer, int], draft: tuple[Tokenizer, int]
    ) -> tuple[Vocabulary, Vocabulary, TokenMap] | None:
        """Compare two tokenizers, each with the size of its model's vocabulary; None if
        all tokens are equal.

        The last comparison is kept, since it reads whole vocabularies. Raises
        VocabularyMismatch if no token is shared.
        """
        key = (*target, *draft)
        if self._translation is None or self._translation[0] != key:
            vocabularies = Vocabulary(*target), Vocabulary(*draft)
            same = target[0].get_vocab() == draft[0].get_vocab()
            self._translation = (
                key,
                None if same else (*vocabularies, TokenMap.between(*vocabularies)),
            )
        return self._translation[1]

    def cost(self, model: Model) -> dict[int, float]:
        """Return the seconds of a forward by its rows, measured the first time."""
        if self._cost is None:
            self._cost = measure(model)
        return self._cost

    @contextmanager
    def budget(
        self, draft: PreTrainedModel, key: Key, make: Callable[[], DraftBudget]
    ) -> Iterator[DraftBudget]:
        """Yield the budget of the last call with this draft model and key, or a new
        one.

        An error inside discards it, since its statistics of the last round are
        incomplete.
        """
        budgets = self._budgets.setdefault(draft, {})
        budget = budgets.pop(key, None) or make()
        yield budget
        budgets[key] = budget

    def draft(self, source: str, target: Model | PreTrainedModel) -> Model:
        """Return the draft model of that folder or hub id, loaded the first time."""
        if source not in self.drafts:
            self.drafts[source] = Model.load(
                source, dtype=target.dtype, device=str(target.device)
            )
            self.drafts[source].quantize_int8()
        return self.drafts[source]


_RECORDS: WeakKeyDictionary[PreTrainedModel, ModelRecord] = WeakKeyDictionary()
_GUARD = Lock()


@contextmanager
def lock_models(*models: PreTrainedModel) -> Iterator[None]:
    """Lock several models against other borrowers.

    Locks are taken in a fixed order, so that two calls with the same models cannot
    deadlock.
    """
    with ExitStack() as held:
        for record in sorted(map(_record, models), key=id):
            held.enter_context(record.lock)
        yield


@contextmanager
def borrowed_model(hf: PreTrainedModel) -> Iterator[tuple[Model, ModelRecord]]:
    """Borrow a model: probe it the first time only, and restore it in any case."""
    with lock_models(hf):
        record = _record(hf)
        record.refresh(hf)
        with borrow(hf, record.capability) as model:
            record.capability = model.capability
            yield model, record


def model_record(hf: PreTrainedModel) -> ModelRecord:
    """Return the record of a model, probed the first time; `refused` says why no
    backend can run it.
    """
    record = _record(hf)
    with lock_models(hf):
        record.refresh(hf)
        if record.capability is None and record.refused is None:
            try:
                with borrow(hf) as model:
                    record.capability = model.capability
            except Exception as error:  # noqa: BLE001 - transformers serves the model after any error
                record.refused = words(error)
    return record


def _record(hf: PreTrainedModel) -> ModelRecord:
    with _GUARD:
        return _RECORDS.setdefault(hf, ModelRecord())
