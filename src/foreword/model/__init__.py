"""SCORE: the target model. Unmodified Hugging Face models, run by the fastest backend that is exact for them."""

from transformers import PreTrainedModel as HFModel

from foreword.model.backend import Mode
from foreword.model.cost import measure
from foreword.model.model import Model, borrow
from foreword.model.options import options
from foreword.model.pool.plan import Read
from foreword.model.probe.probe import Capability
from foreword.model.seq2seq import check_decoder_only
from foreword.model.tokenizer import Tokenizer, check_same, load_tokenizer

__all__ = [
    "Capability",
    "HFModel",
    "Mode",
    "Model",
    "Read",
    "Tokenizer",
    "borrow",
    "check_decoder_only",
    "check_same",
    "load_tokenizer",
    "measure",
    "options",
]
