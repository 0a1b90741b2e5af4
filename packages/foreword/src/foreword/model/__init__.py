"""SCORE: the target model.

Unmodified Hugging Face models, run by the fastest backend that is exact for them.
"""

from transformers import PreTrainedModel as HFModel

from foreword.model.architectures import is_seq2seq
from foreword.model.backend import Mode
from foreword.model.cost import machine, measure
from foreword.model.kv.reads import PromptEnd, Read, source_id
from foreword.model.loading.given import borrow
from foreword.model.model import Model
from foreword.model.probe.probe import Capability
from foreword.model.tokenizer import (
    Tokenizer,
    check_same,
    load_tokenizer,
    need_tokenizer,
)

__all__ = [
    "Capability",
    "HFModel",
    "Mode",
    "Model",
    "PromptEnd",
    "Read",
    "Tokenizer",
    "borrow",
    "check_same",
    "is_seq2seq",
    "load_tokenizer",
    "machine",
    "measure",
    "need_tokenizer",
    "source_id",
]
