"""Checks that a model is causal; a bidirectional one has no next-token scores."""

import torch
from transformers import PreTrainedModel

from foreword.errors import ModelError
from foreword.model.encoder import own_logits

TOKENS = 8
"""Tokens. Length of the tested sequence."""
TOLERANCE = 5e-3
"""Standard deviations of all logits; random bidirectional models reach 1e-2."""


@torch.inference_mode()
def check_causal(model: PreTrainedModel, name: str) -> None:
    """Raise ModelError unless the last token leaves earlier logits as they are."""
    vocab = model.config.get_text_config().vocab_size
    text = torch.randint(vocab, (TOKENS,), generator=torch.Generator().manual_seed(1))
    other = text.clone()
    other[-1] = (other[-1] + 1 + vocab // 2) % vocab
    logits = own_logits(model, torch.stack([text, other])).float()
    # The median row: with experts, another token may change the rounding of a few rows.
    changed = (logits[0, :-1] - logits[1, :-1]).abs().amax(-1).median()
    if changed > TOLERANCE * logits[0].std():
        hint = (
            " (config.json says is_decoder=false)"
            if getattr(model.config, "is_decoder", None) is False
            else ""
        )
        raise ModelError(
            f"cannot generate text with {name}: {type(model).__name__} is "
            f"bidirectional, so the scores of a token depend on later ones{hint}. Use "
            "a causal model, a decoder"
        )
