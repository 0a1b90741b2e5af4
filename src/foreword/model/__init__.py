"""SCORE: Hugging Face models, their modelling code untouched, read through our own attention and pool."""

from transformers import PreTrainedModel as HFModel

from foreword.model.cost import measure
from foreword.model.driver import Mode
from foreword.model.model import Model, borrow, options
from foreword.model.plan import Read
from foreword.model.probe import Capability
from foreword.model.vocabulary import Tokenizer, check_same, load_tokenizer

__all__ = [
    "Capability",
    "HFModel",
    "Mode",
    "Model",
    "Read",
    "Tokenizer",
    "borrow",
    "check_same",
    "load_tokenizer",
    "measure",
    "options",
]
