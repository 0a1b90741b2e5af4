"""The option `assistant_early_exit` of transformers' `generate`: the model drafts with
its own first layers.
"""

from __future__ import annotations

from transformers import PreTrainedModel

from foreword.draft.self_speculative.exits import PREFIX, check_exit
from foreword.errors import InvalidRequest
from foreword.hf.inputs import Setting
from foreword.model.layers import layer_count
from foreword.registry import EARLY_EXIT

OPTION = "assistant_early_exit"


def early_exit(
    model: PreTrainedModel, setting: Setting, others: dict[str, object]
) -> str | None:
    """Return the draft of a call that asks for early exit; None if it does not.

    `others`: by name, what else the call may say about drafting, None where it does
    not. Raises InvalidRequest for layers that the model does not have, and for another
    drafter beside them.
    """
    layers = setting(OPTION)
    if layers is None:
        return None
    name = f"{OPTION}={layers!r}"
    for other, given in others.items():
        if given is not None and not (other == "method" and given == EARLY_EXIT):
            raise InvalidRequest(
                f"cannot use {name} with '{other}': both say what drafts. Leave one out"
            )
    kind = type(model).__name__
    if type(layers) is not int:
        layers = 0  # transformers takes numbers alone
    return f"{PREFIX}{check_exit(layers, layer_count(model.config), kind, name)}"
