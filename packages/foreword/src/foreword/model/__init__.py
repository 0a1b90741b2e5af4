"""SCORE: the target model.

Unmodified Hugging Face models, run by the fastest backend that is exact for them.
"""

from transformers import PreTrainedModel as HFModel

from foreword.model.backend import Mode
from foreword.model.cost import machine
from foreword.model.encoder import is_seq2seq, source_id
from foreword.model.kv.reads import PromptEnd, Read
from foreword.model.loading.given import borrow
from foreword.model.model import Model, measure
from foreword.model.probe.probe import Capability
from foreword.model.seq2seq import Seq2Seq, check_decoder_only, is_speech
from foreword.model.shared_encoder import (
    is_decoder,
    load_draft,
    share_encoder,
    with_encoder,
)
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
    "Seq2Seq",
    "Tokenizer",
    "borrow",
    "check_decoder_only",
    "check_same",
    "is_decoder",
    "is_seq2seq",
    "is_speech",
    "load_draft",
    "load_tokenizer",
    "machine",
    "measure",
    "need_tokenizer",
    "share_encoder",
    "source_id",
    "with_encoder",
]
