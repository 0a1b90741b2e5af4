"""The family's draft model with another vocabulary: shuffled, incomplete, renamed."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer as RawTokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

import starter
from foreword.draft.cross_vocab.pairing import VocabularyPair
from foreword.draft.cross_vocab.token_map import TokenMap
from foreword.draft.cross_vocab.vocabulary import Vocabulary
from foreword.model import Model, load_tokenizer

SPECIALS = {
    "<|end|>": "</s>",
    "<|user|>": "<|human|>",
    "<|assistant|>": "<|assistant|>",
    "<|system|>": "<|sys|>",
}
LETTERS = 260
"""Special tokens and bytes come first; none before this id is ever missing."""


@dataclass(frozen=True)
class Foreign:
    """How foreign: one of how many tokens is missing; whether specials are renamed."""

    one_in: int
    renamed: bool = True

    def tokenizer(self) -> PreTrainedTokenizerFast:
        file = json.loads(
            (starter.draft() / "tokenizer.json").read_text(encoding="utf-8")
        )
        ours = file["model"]["vocab"]
        missing = {
            token
            for token, place in ours.items()
            if place >= LETTERS and place % self.one_in == 0
        }
        places, names = shuffled().tolist(), SPECIALS if self.renamed else {}
        file["model"]["vocab"] = {
            names.get(t, t): places[place]
            for t, place in ours.items()
            if t not in missing
        }
        merges = [
            pair if isinstance(pair, list) else pair.split(" ")
            for pair in file["model"]["merges"]
        ]
        file["model"]["merges"] = [
            pair for pair in merges if not missing & {*pair, "".join(pair)}
        ]
        for added in file["added_tokens"]:
            added["id"], added["content"] = (
                places[added["id"]],
                names.get(added["content"], added["content"]),
            )
        raw = RawTokenizer.from_str(json.dumps(file))
        return PreTrainedTokenizerFast(
            tokenizer_object=raw, eos_token=names.get("<|end|>", "<|end|>")
        )

    def model(self, dtype: torch.dtype) -> PreTrainedModel:
        model = AutoModelForCausalLM.from_pretrained(starter.draft(), dtype=dtype)
        weight = model.get_input_embeddings().weight.data
        weight[shuffled()] = weight.clone()
        model.generation_config.eos_token_id = model.config.eos_token_id = int(
            shuffled()[0]
        )
        return model

    def save(self, folder: Path) -> Path:
        self.tokenizer().save_pretrained(folder)
        self.model(torch.bfloat16).save_pretrained(folder)
        return folder


TRANSLATED = (
    r"its draft tokens are translated: it has \d+ of the target's 8192 tokens, and "
    r"fewer are accepted"
)
NEAR, FAR = Foreign(one_in=40), Foreign(one_in=2)
"""Most of the text is in shared tokens; half of the tokens are missing."""


@cache
def shuffled() -> torch.Tensor:
    """shuffled()[family id] = foreign id."""
    return torch.randperm(8192, generator=torch.Generator().manual_seed(1))


@cache
def pair(how: Foreign, dtype: str = "float32") -> VocabularyPair:
    model = Model(how.model(getattr(torch, dtype)))
    lexicons = (
        Vocabulary(load_tokenizer(starter.target()), model.vocab),
        Vocabulary(how.tokenizer(), model.vocab),
    )
    return VocabularyPair(model, *lexicons, TokenMap.between(*lexicons))
