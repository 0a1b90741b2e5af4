"""Options of transformers' `generate` with which a model drafts by itself:
`assistant_early_exit`, its own first layers, and `use_mtp`, layers of its checkpoint.
"""

from dataclasses import dataclass

from transformers import PreTrainedModel

from foreword.draft.self_speculative.exits import (
    PREFIX,
    check_exit,
)
from foreword.errors import InvalidRequest
from foreword.hf.inputs import Setting
from foreword.model.layers import layer_count
from foreword.registry import (
    EARLY_EXIT,
    OF_CHECKPOINT,
    OWN_METHODS,
)

EXIT = "assistant_early_exit"
AHEAD = "use_mtp"
OPTIONS = (EXIT, AHEAD)


@dataclass(frozen=True, slots=True)
class OwnDraft:
    """How a model drafts by itself."""

    method: str
    source: str | None = None


def is_set(setting: Setting, name: str) -> bool:
    """Return whether a call sets an option to anything but None or False."""
    value = setting(name)
    return value is not None and value is not False


def own_draft(
    model: PreTrainedModel, setting: Setting, others: dict[str, object]
) -> OwnDraft | None:
    """Return how the model of a call drafts by itself; None if the call does not ask
    for it.

    `others`: by name, what else the call may say about drafting, None where it does
    not. Raises InvalidRequest for what the model does not have, and for another drafter
    beside it.
    """
    names = [name for name in OPTIONS if is_set(setting, name)]
    if not names:
        return None
    name = f"{names[0]}={setting(names[0])!r}"
    draft = _exit(model, setting(EXIT), name) if EXIT in names else _ahead(model, name)
    others = {**others, **dict.fromkeys(names[1:], True)}
    for other, value in others.items():
        if value is not None and not (other == "method" and value == draft.method):
            raise InvalidRequest(
                f"cannot use {name} with '{other}': both say what drafts. Leave one out"
            )
    return draft


def _exit(model: PreTrainedModel, layers: object, name: str) -> OwnDraft:
    kind = type(model).__name__
    # transformers takes numbers alone
    count = layers if type(layers) is int else 0
    checked = check_exit(count, layer_count(model.config), kind, name)
    return OwnDraft(EARLY_EXIT, f"{PREFIX}{checked}")


def _ahead(model: PreTrainedModel, name: str) -> OwnDraft:
    if not OWN_METHODS[OF_CHECKPOINT].brought_by(model):
        raise InvalidRequest(
            f"cannot use {name}: the checkpoint of {type(model).__name__}, "
            f"{model.config.name_or_path or 'which has no name'}, holds no layers that "
            "predict ahead, or they cannot be read. Leave it out, or give a draft model"
        )
    return OwnDraft(OF_CHECKPOINT)
