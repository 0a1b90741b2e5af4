"""Interface of the memories that take part in a torch forward."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from foreword.model.executors.torch.plan import Plan
from foreword.model.kv.memories import SequenceMemory
from foreword.model.kv.reads import Span


class TorchMemory(SequenceMemory):
    """A memory of the torch executor. A call that it does not override does nothing."""

    def during(
        self, model: PreTrainedModel, spans: Sequence[Span], rows: int
    ) -> AbstractContextManager[Any]:
        """Add what the model needs of these sequences to a forward of `rows` rows."""
        return nullcontext()

    def run(
        self,
        model: PreTrainedModel,
        packed: Int[Tensor, "2 rows"],
        logit_rows: list[int],
        plan: Plan,
    ) -> Float[Tensor, "kept vocab"] | None:
        """Run the model over the tokens and positions, if it takes other inputs than a
        decoder alone; return the logits of the kept rows.
        """
        return None
