"""Builds transformers' multi-token prediction layers (`MtpModel`) from a model's own
decoder layers.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from foreword.errors import ModelError
from foreword.model.loading.complete import check_names

NEEDED = (
    "cannot use multi-token prediction: transformers builds such layers from version "
    "5.23 on. Run pip install 'transformers>=5.23'"
)
COUNT = "num_mtp_layers"
"""Their number in a config, as transformers reads it."""
OWN = ("embed_tokens.", "shared_head.", "rotary_emb.")
"""Modules of such layers that are the model's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kinds:
    """What the layers are, where a config names a kind for each layer."""

    attention: str = "full_attention"
    mlp: str | None = None
    """None = as in the model's last layer."""
    shared_norm: bool = False
    """One norm for the outputs of all layers, in place of one each."""


def buildable() -> bool:
    """Return whether the installed transformers has such layers."""
    try:
        from transformers.modeling_layers import MtpModel
    except ImportError:
        return False
    return MtpModel is not None and hasattr(PreTrainedConfig, "get_mtp_config")


def layers_ahead(model: PreTrainedModel, kinds: Kinds, count: int) -> Any:
    """Return transformers' MtpModel of a model, without storage.

    Raises ModelError where transformers has none, or cannot make one for this kind.
    """
    if not buildable():
        raise ModelError(NEEDED)
    from transformers.modeling_layers import MtpModel

    config = model.config.get_text_config()
    try:
        with _counted(config, kinds, count), torch.device("meta"):
            return MtpModel(model, count)
    except Exception as error:
        raise ModelError(
            f"cannot use multi-token prediction with {type(model).__name__}: "
            "transformers makes no such layer of its decoder layers "
            f"({error}). Use another method"
        ) from error


@contextmanager
def _counted(config: PreTrainedConfig, kinds: Kinds, count: int) -> Iterator[None]:
    """Let a config describe these layers while inside, as transformers reads them."""
    settings: dict[str, Any] = {COUNT: count}
    if getattr(config, "layer_types", None) is not None:
        settings["mtp_layer_types"] = [kinds.attention] * count
    if getattr(config, "mlp_layer_types", None) is not None:
        kind = kinds.mlp or config.mlp_layer_types[-1]
        settings["mtp_mlp_layer_types"] = [kind] * count
    if kinds.shared_norm:
        settings["chain_hidden_post_norm"] = True
    # what the config says itself comes first
    added = {
        name: value
        for name, value in settings.items()
        if getattr(config, name, None) is None or name == COUNT
    }
    before = {name: vars(config).get(name) for name in added}
    try:
        for name, value in added.items():
            setattr(config, name, value)
        yield
    finally:
        for name, value in before.items():
            if value is None:
                vars(config).pop(name, None)
            else:
                setattr(config, name, value)


def fill(
    layers: Any,
    tensors: Mapping[str, Tensor],
    model: PreTrainedModel,
    dtype: torch.dtype,
    source: str,
) -> None:
    """Give `layers_ahead` of a model their tensors, converted as transformers converts
    the model's.

    Raises ModelError for a tensor that is missing or does not belong there.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import convert_and_load_state_dict_in_model
    from transformers.modeling_utils import LoadStateDictConfig

    conversions: Any = getattr(model, "_weight_conversions", None)
    if conversions is None:
        conversions = get_model_conversion_mapping(model)
    how = LoadStateDictConfig(weight_mapping=conversions, dtype=dtype)
    info, _ = convert_and_load_state_dict_in_model(
        model=layers, state_dict=dict(tensors), load_config=how
    )
    missing = {name for name in info.missing_keys if not name.startswith(OWN)}
    check_names(source, missing, info.unexpected_keys, info.mismatched_keys)
