"""Names of what one can choose: drafting methods, verification rules, budgets, and
formats of quantized weights.

Plain data. Nothing is imported but on first use, not even for types, so the command
line knows every name at once (`entries.Registry`), and methods may import this module.
"""

from dataclasses import dataclass
from typing import Any

from foreword.entries import Registry, imported

MODEL = "a draft model"
HEAD = "a trained head"
"""What `draft=` may be."""


@dataclass(frozen=True, slots=True)
class Method:
    """What is known of a drafting method before its code is imported."""

    summary: str = ""
    """One line for `foreword methods`."""
    home: str = ""
    """Class of the method, "module:class"; other packages leave it out."""
    takes: str = ""
    """What `draft=` may be: MODEL, or a few other words. Empty: it takes nothing."""
    needs: bool = False
    """`draft=` is required."""
    seq2seq: bool = False
    """It can draft for an encoder-decoder."""
    joins: bool = False
    """It has other methods as members."""
    draws: bool = False
    """It samples draft tokens, with their q if the rule compares distributions."""
    looks_up: bool = False
    """It drafts from text alone, in microseconds, so that what it would have drafted
    can be scored on the text that another method wrote.
    """
    found: str = ""
    """Function, "module:function", that says whether a target's own checkpoint brings
    what the method needs. Then it is the own method without a draft model.
    """

    def brought_by(self, target: object) -> bool:
        """Return whether a target's checkpoint brings what the method needs; False for
        methods that no checkpoint serves. `target`: a folder or hub id, or a model.
        """
        return bool(self.found and target and imported(self.found)(target))


OWN_METHODS: dict[str, Method] = {
    "none": Method(
        "no draft tokens: plain decoding", "foreword.draft.none:NoDrafter", seq2seq=True
    ),
    "ngram": Method(
        "copies what followed the last few tokens earlier in the text",
        "foreword.draft.lookup.ngram:NgramDrafter",
        seq2seq=True,
        looks_up=True,
    ),
    "suffix": Method(
        "counts what followed the last tokens in the text and past answers",
        "foreword.draft.lookup.suffix:SuffixDrafter",
        takes="a file of past answers",
        seq2seq=True,
        looks_up=True,
    ),
    "predicted": Method(
        "copies from an answer that the caller expects (prediction=), or from the "
        "prompt",
        "foreword.draft.lookup.predicted:PredictedDrafter",
        seq2seq=True,
    ),
    "recycle": Method(
        "reuses the target's earlier likeliest successors of each token",
        "foreword.draft.lookup.recycle:RecyclingDrafter",
        seq2seq=True,
    ),
    "lookahead": Method(
        "refines tokens for later positions round by round",
        "foreword.draft.lookup.lookahead:LookaheadDrafter",
        seq2seq=True,
    ),
    "lm": Method(
        "a smaller model with the same tokenizer",
        "foreword.draft.lm:LanguageModelDrafter",
        takes=MODEL,
        needs=True,
        seq2seq=True,
        draws=True,
    ),
    "pard": Method(
        "a smaller model that predicts several tokens in one forward, at masks",
        "foreword.draft.pard:MaskedDrafter",
        takes=f"{MODEL} with a mask token",
        needs=True,
        seq2seq=True,
        draws=True,
    ),
    "eagle": Method(
        "predicts with one layer on the target's hidden states (EAGLE-3)",
        "foreword.draft.heads.eagle:EagleDrafter",
        takes=HEAD,
        needs=True,
        seq2seq=True,
        draws=True,
    ),
    "mtp": Method(
        "the multi-token-prediction layers of the target's own checkpoint",
        "foreword.draft.mtp.mtp:MtpDrafter",
        takes=HEAD,
        found="foreword.draft.mtp.mtp_found:brings_layers",
        draws=True,
    ),
    "dflash": Method(
        "predicts a block of tokens at once with a diffusion head",
        "foreword.draft.heads.dflash:DFlashDrafter",
        takes=HEAD,
        needs=True,
        draws=True,
    ),
    "dspark": Method(
        "predicts a block with a diffusion head and a small bigram table",
        "foreword.draft.heads.dspark:DSparkDrafter",
        takes=HEAD,
        needs=True,
        draws=True,
    ),
    "medusa": Method(
        "predicts one token per head from the target's last hidden state",
        "foreword.draft.heads.medusa:MedusaDrafter",
        takes=HEAD,
        needs=True,
        seq2seq=True,
        draws=True,
    ),
    "layers": Method(
        "the target itself without some of its layers",
        "foreword.draft.self_speculative.layers:LayersDrafter",
        takes="an exit such as exit:4",
        seq2seq=True,
        draws=True,
    ),
    "quantized": Method(
        "the target itself with weights of 4 or 8 bits (native backend only)",
        "foreword.draft.self_speculative.quantized:QuantizedDrafter",
        takes="int4 or int8",
        draws=True,
    ),
    "retrieval": Method(
        "looks up the last tokens in a datastore made by `foreword index`",
        "foreword.draft.lookup.retrieval:RetrievalDrafter",
        takes="a datastore",
        needs=True,
        seq2seq=True,
    ),
    "tli": Method(
        "a smaller model with another tokenizer, in shared tokens",
        "foreword.draft.cross_vocab.tli:IntersectionDrafter",
        takes=MODEL,
        needs=True,
        draws=True,
    ),
    "slem": Method(
        "a smaller model with any tokenizer, re-tokenised text",
        "foreword.draft.cross_vocab.slem:StringMatchDrafter",
        takes=MODEL,
        needs=True,
    ),
    "auto": Method(
        "the fastest of several methods, by measured time (the default)",
        "foreword.draft.ensemble.auto:AutoDrafter",
        takes=MODEL,
        seq2seq=True,
        joins=True,
    ),
    "cascade": Method(
        "several methods in turn, the next where the one before is not confident",
        "foreword.draft.ensemble.cascade:CascadeDrafter",
        joins=True,
    ),
}
"""Foreword's methods. No other place outside a method's own files names one."""

DEFAULT_METHOD = "ngram"
"""Own method of a target without a draft model."""
DEFAULT_WITH_DRAFT = "lm"
"""Own method of a draft model."""
PLAIN = "none"
"""The method without draft tokens."""
DEFAULT_MEMBERS = ("suffix", DEFAULT_WITH_DRAFT)
"""Default members of an ensemble."""
AUTO = "auto"
"""The default method, which chooses among others."""
LOOKUPS = (DEFAULT_METHOD, "suffix")
"""Methods that `auto` always chooses among: they need no model."""
SHARED_TOKENS = "tli"
"""Method for a draft model of another vocabulary, by the tokens that both have."""
SHARED_TEXT = "slem"
"""Method for a draft model of another vocabulary, by text."""
AHEAD_TENSORS = "mtp"
"""Beginning of the names of tensors that predict tokens further on, in checkpoints."""
OF_CHECKPOINT = "mtp"
"""Method of a target whose checkpoint brings layers that draft."""
EARLY_EXIT = "layers"
"""Method of a target that drafts with its own first layers."""
HEAD_METHODS: dict[str, str] = {
    kind: method
    for method, kinds in {
        "eagle": "LlamaForCausalLMEagle3 eagle3 PEagleDraftModel peagle "
        "draft_vocab_size",
        "dflash": "DFlashDraftModel dflash DFlash2DraftModel dflash2",
        "dspark": "Qwen3DSparkModel DSparkDraftModel dspark",
        "mtp": "MtpModel Gemma4AssistantForCausalLM Gemma4UnifiedAssistantForCausalLM",
        "medusa": "MedusaModel medusa_num_heads",
        "pard": "pard_token ptd_token_id",
    }.items()
    for kind in kinds.split()
}
"""Kind of a trained head, or key of a mask token, from its config -> its method."""
HEAD_KEYS = "medusa_num_heads draft_vocab_size".split()  # of heads that name no kind
HEAD_FILES = "medusa_lm_head.safetensors medusa_lm_head.pt".split()
"""Files of weights that heads have beside the usual ones."""
OTHER_HEADS = (
    "DominoDraftModel Eagle3DeepseekV2ForCausalLM "
    "GptOssForCausalLMEagle3 LlamaForCausalLMEagle eagle mtp xpress"
).split()
"""Published kinds of heads that no method runs."""

METHODS: Registry[Any] = Registry(
    "method",
    "foreword.methods",
    "foreword.draft.base:Drafter",
    {name: one.home for name, one in OWN_METHODS.items()},
)

DEFAULT_RULE = "match"
GUARANTEES = ("same-text", "same-distribution")
"""What a rule may promise; a name for the fastest rule that does."""
RULES: Registry[Any] = Registry(
    "verification rule",
    "foreword.rules",
    "foreword.verify.base:Rule",
    {
        "match": "foreword.verify.match:RULE",
        "rejection": "foreword.verify.rejection:RULE",
        "block": "foreword.verify.block:RULE",
        "without-replacement": "foreword.verify.without_replacement:RULE",
        "traversal": "foreword.verify.traversal:RULE",
    },
)

DEFAULT_BUDGET = "adaptive"
BUDGETS: Registry[Any] = Registry(
    "budget",
    "foreword.budgets",
    "foreword.budget.base:DraftBudget",
    {
        "adaptive": "foreword.budget.adaptive:AdaptiveBudget",
        "heuristic": "foreword.budget.heuristic:HeuristicBudget",
        "confidence": "foreword.budget.stopping:ConfidenceBudget",
    },
)

WEIGHT_FORMATS: Registry[Any] = Registry(
    "quantization method",
    "foreword.weight_formats",
    "foreword.model.quantized.layer:Format",
    {
        "awq": "foreword.model.quantized.formats.awq:FORMAT",
        "bitsandbytes": "foreword.model.quantized.formats.bitsandbytes:FORMAT",
        "compressed-tensors": "foreword.model.quantized.formats.compressed:FORMAT",
        "fp8": "foreword.model.quantized.formats.fp8:FORMAT",
        "gptq": "foreword.model.quantized.formats.gptq:FORMAT",
        "modelopt": "foreword.model.quantized.formats.modelopt:FORMAT",
        "mxfp4": "foreword.model.quantized.formats.mxfp4:FORMAT",
        "torchao": "foreword.model.quantized.formats.torchao:FORMAT",
    },
)
"""The value of `quant_method` in a config -> how it stores a matrix."""
