"""A draft model that predicts several tokens in one forward (PARD, arXiv 2504.18583).

The forward reads the text, then masks: the row of the last committed token predicts
the next token, and mask k the token k places later. The model is a causal model of
transformers; its config names the mask token. Keys and values of masks are dropped.
"""

from foreword.draft.heads.block import MaskBlockDrafter, MaskBlocks
from foreword.draft.lm import LanguageModelDrafter
from foreword.errors import ModelError
from foreword.model import HFModel, Mode, Model
from foreword.model.loading.hub import MASK_TOKENS
from foreword.registry import OWN_METHODS
from foreword.types import DraftTree, Request

DEEP = 12
"""Draft tokens. Longest chain from one forward: K at inference in the paper's
experiments, where models were trained on 8 (section 4).
"""


class MaskedDrafter(MaskBlockDrafter, LanguageModelDrafter):
    """Drafter that grows trees from the distributions of one forward per round."""

    about = OWN_METHODS["pard"]
    limits_head = False

    def __init__(
        self,
        model: Model,
        vocab: int | None = None,
    ) -> None:
        """Raises ModelError where the model's config has no mask token."""
        mask = mask_token(model.hf)
        missing = (vocab or model.vocab) - model.vocab
        self.blocks = MaskBlocks(model, mask, missing)
        super().__init__(model, vocab, self.blocks)
        # without a cache, a forward scores one token
        plain = model.mode is Mode.PLAIN
        self.deep = 1 if plain else DEEP

    def remember(self, request: Request, tree: DraftTree) -> None:
        """Keep nothing: masks were read, not these draft tokens."""


def mask_token(hf: HFModel) -> int:
    """Return the id of the mask token in a model's config.

    Raises ModelError where it has none, or one that is not a token.
    """
    mask = named_mask(hf)
    vocab = hf.config.get_text_config().vocab_size
    name = hf.config.name_or_path or type(hf).__name__
    if mask is None:
        raise ModelError(
            f"cannot draft several tokens at once with {name}: its config names no "
            f"mask token ({' or '.join(MASK_TOKENS)}). Train it with `foreword train "
            "pard`, or use method 'lm'"
        )
    if type(mask) is not int or not 0 <= mask < vocab:
        raise ModelError(
            f"cannot draft with {name}: its mask token is {mask!r}, and it has "
            f"{vocab} tokens. Correct {MASK_TOKENS[0]} in its config"
        )
    return mask


def named_mask(hf: HFModel) -> object:
    """Return the mask token that a model's config names, unchecked; None if none."""
    config = hf.config
    for key in MASK_TOKENS:
        for part in (config, config.get_text_config()):
            mask = getattr(part, key, None)
            if mask is not None:
                return mask
    return None
