"""SCORE: the target, an unmodified Hugging Face model on its fastest exact backend."""

from transformers import PreTrainedModel as HFModel

from foreword.model.architectures import is_seq2seq
from foreword.model.backend import Mode
from foreword.model.cost import machine
from foreword.model.executors.registry import Capability
from foreword.model.kv.reads import PromptEnd, Read, source_id
from foreword.model.loading.given import load_draft
from foreword.model.model import Model, measure
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
    "check_same",
    "is_seq2seq",
    "load_draft",
    "load_tokenizer",
    "machine",
    "measure",
    "need_tokenizer",
    "source_id",
]
