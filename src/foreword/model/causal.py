"""Whether a model can write text: the next token of one that reads in both directions means nothing."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from foreword.errors import ModelError

TOKENS = 8
SLIGHT = 5e-3
"""Share of the spread of all logits. Random models that read both ways reach 1e-2, those that read one way 0."""


@torch.inference_mode()
def check_causal(model: PreTrainedModel, name: str) -> None:
    """Raises ModelError where the last token of a text changes the logits of all tokens before it."""
    vocab = model.config.get_text_config().vocab_size
    text = torch.randint(vocab, (TOKENS,), generator=torch.Generator().manual_seed(1))
    other = text.clone()
    other[-1] = (other[-1] + 1 + vocab // 2) % vocab
    device = next(model.parameters()).device
    logits = model(input_ids=torch.stack([text, other]).to(device), use_cache=False).logits.float()
    # A middling row: where experts are shared out, another token may round a few rows otherwise.
    changed = (logits[0, :-1] - logits[1, :-1]).abs().amax(-1).median()
    if changed > SLIGHT * logits[0].std():
        hint = " (config.json says is_decoder=false)" if getattr(model.config, "is_decoder", None) is False else ""
        raise ModelError(
            f"cannot write text with {name}: {type(model).__name__} reads in both directions, so its scores of a token "
            f"depend on what comes later{hint}. Give a model that was trained to write, a decoder"
        )
