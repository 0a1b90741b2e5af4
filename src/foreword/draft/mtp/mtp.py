"""Drafter with the multi-token-prediction layers of the target's checkpoint
(DeepSeek-V3: arXiv 2412.19437, section 2.2; one layer used again: FastMTP, arXiv
2509.18362).
"""

from __future__ import annotations

from pathlib import Path

from foreword.draft.base import Source
from foreword.draft.heads.state_drafter import StateDrafter
from foreword.draft.mtp.mtp_assistant import AssistantReader, is_assistant
from foreword.draft.mtp.mtp_checkpoint import load
from foreword.draft.mtp.mtp_head import MtpHead
from foreword.draft.mtp.mtp_native import (
    NativeMtp,
    unsupported,
)
from foreword.draft.mtp.mtp_reader import MtpReader
from foreword.errors import InvalidRequest
from foreword.model import Model, Tokenizer
from foreword.model.layers import layer_count
from foreword.registry import OWN_METHODS
from foreword.types import Request


class AssistantDrafter(StateDrafter):
    """Drafter with a model that reads the target's keys and values, and its last hidden
    state.
    """

    about = OWN_METHODS["mtp"]
    reads_target = True

    def __init__(self, reader: AssistantReader, target: Model) -> None:
        super().__init__(reader, (layer_count(target.hf.config),))

    def rereads(self, sequence: Request) -> bool:
        del sequence  # it reads the end of a text alone
        return False


class MtpDrafter(StateDrafter):
    """Drafter whose layers read the target's last hidden state, then their own; each
    tree level takes one forward of them.

    A single layer is used again for each further token. Several layers draft one token
    each.
    """

    about = OWN_METHODS["mtp"]

    def __init__(
        self,
        head: MtpHead,
        target: Model,
    ) -> None:
        """`head`: in the target's dtype, on its device."""
        head.eval().requires_grad_(False)
        reader = (
            MtpReader(head, target)
            if unsupported(head, target)
            else NativeMtp(head, target)
        )
        super().__init__(reader, (layer_count(target.hf.config),))
        if head.depth > 1:
            self.deep = head.depth

    @classmethod
    def load(
        cls, source: Source, target: Model, tokenizer: Tokenizer | None
    ) -> StateDrafter:
        """Load the layers from `source`, a folder or hub id; None = from the target's
        own checkpoint.
        """
        del tokenizer  # the layers use the target's tokenizer
        if not isinstance(source, str | Path | None):
            raise InvalidRequest(
                "cannot draft with this model: the method takes the layers of a "
                "checkpoint. Give draft='folder or hub id', or leave it out"
            )
        target.check_hidden_states((layer_count(target.hf.config),))
        if source is not None and is_assistant(source):
            return AssistantDrafter(AssistantReader(source, target), target)
        head = load(target.name if source is None else source, target.hf, target.dtype)
        drafter = cls(head.to(target.device), target)
        if isinstance(drafter._reader, NativeMtp):
            drafter._reader.quantize()
        return drafter
