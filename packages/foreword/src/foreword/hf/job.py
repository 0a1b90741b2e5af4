"""One call of transformers' `generate`: its check, its rows and its output."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
)
from transformers.generation.utils import GenerateEncoderDecoderOutput

from foreword.errors import InvalidRequest
from foreword.hf.adapters import (
    PaddedProcessor,
    Recorder,
    StopRules,
    distribution,
    split,
)
from foreword.hf.inputs import unpadded
from foreword.hf.loop import Prompts, Speculation, engine, run
from foreword.hf.outputs import SpeculativeOutput, SpeculativeSeq2SeqOutput, steps
from foreword.hf.unsupported import Call
from foreword.model.vision.rows import ImageRows
from foreword.sampling.noise import seed_of
from foreword.types import Features, Request, Source

Output = (
    Int[Tensor, "batch length"]
    | SpeculativeOutput
    | SpeculativeSeq2SeqOutput
    | GenerateEncoderDecoderOutput
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """The arguments of a call that all its rows obey, sorted by who applies them."""

    limit: int
    """Tokens that a row may gain."""
    eos: frozenset[int]
    """Tokens that end a row."""
    criteria: list[Any]
    """Other reasons to stop."""
    processors: list[Any]
    filters: dict[str, float]
    """Processors that are sampling parameters of ours."""


@dataclass(frozen=True, slots=True)
class Job:
    """One call of transformers' `generate`, with its arguments."""

    prompts: Prompts
    source: Tensor | None
    """What the encoder of an encoder-decoder reads, one row for each prompt."""
    config: GenerationConfig
    processors: list[Any]
    criteria: list[Any]
    streamer: Any
    features: tuple[Features, ...] = ()
    """The windows of sound in `source`, where its model reads sound."""
    images: ImageRows | None = None
    """Images of the only prompt."""

    def __post_init__(self) -> None:
        """Copy the arguments, since the caller may change them meanwhile."""
        object.__setattr__(self, "config", copy.deepcopy(self.config))
        object.__setattr__(self, "processors", list(self.processors))
        object.__setattr__(self, "criteria", list(self.criteria))

    def check(self, model: PreTrainedModel, inputs: dict[str, Any]) -> None:
        """Raise InvalidRequest if the call cannot be served."""
        synced, mask = inputs.pop("synced_gpus"), inputs.get("attention_mask")
        setting = {"synced_gpus": synced}.get
        if self.source is not None:
            inputs |= {
                model.main_input_name: self.source,
                "decoder_input_ids": self.prompts,
            }
        else:
            inputs |= {"input_ids": self.prompts}
            inputs["attention_mask"] = (
                torch.ones_like(self.prompts) if mask is None else mask
            )
        call = Call(
            model=model,
            setting=lambda name: getattr(self.config, name, None) or setting(name),
            inputs=inputs,
            processors=self.processors,
            criteria=self.criteria,
            ends=any(hasattr(criterion, "eos_token_id") for criterion in self.criteria),
            stops=any(
                not isinstance(one, MaxLengthCriteria | EosTokenCriteria)
                for one in self.criteria
            ),
            streamer=self.streamer,
            explicit=True,
        )
        refusal = call.refusal()
        if refusal:
            raise refusal.error

    def run(
        self, model: PreTrainedModel, mask: Tensor | None, speculation: Speculation
    ) -> Output:
        """Generate all rows and return the output."""
        rows = self.rows(mask, speculation)
        read = self.prompts if self.source is None or self.features else self.source
        with engine(model, speculation, rows, read) as loop:
            run(loop, rows, self.streamer)
        return self.output(rows)

    def rows(self, mask: Tensor | None, speculation: Speculation) -> list[Request]:
        """Return one sequence per row, without its padding."""
        rules = self._rules()
        source = None if self.features else self.source
        texts = unpadded(self.prompts, source, None if self.features else mask)
        sample = bool(self.config.do_sample)
        seeds = _seeds(len(self.prompts), speculation.seed, sample)
        return [
            self._row(row, tokens, Source(own), seed, rules)
            for row, ((tokens, own), seed) in enumerate(zip(texts, seeds, strict=True))
        ]

    def _rules(self) -> _Rules:
        """Return what all rows obey. Raises InvalidRequest if no new token fits."""
        length = self.prompts.shape[1]
        ends = [c for c in self.criteria if type(c) is EosTokenCriteria]
        lengths = [c for c in self.criteria if isinstance(c, MaxLengthCriteria)]
        limit = min((c.max_length for c in lengths), default=length) - length
        if limit < 1:
            raise InvalidRequest(
                "cannot generate: the maximum length leaves no room for a new token. "
                "Set 'max_new_tokens' to at least 1"
            )
        processors, filters = split(self.processors)
        return _Rules(
            limit=limit,
            eos=frozenset(int(token) for c in ends for token in c.eos_token_id),
            criteria=[c for c in self.criteria if c not in ends and c not in lengths],
            processors=processors,
            filters=filters,
        )

    def _row(
        self, row: int, tokens: list[int], source: Source, seed: int, rules: _Rules
    ) -> Request:
        """Return the sequence of one row."""
        prompt = self.prompts[row : row + 1]
        padding = prompt[:, : prompt.shape[1] - len(tokens)]
        params = distribution(
            [
                PaddedProcessor(processor, padding, row, len(self.prompts))
                for processor in rules.processors
            ],
            dict(rules.filters),
            sample=bool(self.config.do_sample),
            limit=rules.limit,
        )
        recorder = None
        if self.config.return_dict_in_generate and (
            self.config.output_scores or self.config.output_logits
        ):
            recorder = Recorder(params, len(tokens))
            params = recorder.wrap(params)
        return Request(
            row,
            tokens,
            len(tokens),
            params,
            seed,
            reader=StopRules(prompt, rules.limit, rules.eos, rules.criteria, recorder),
            source=source,
            images=self.images,
            features=self.features[row] if self.features else None,
        )

    def output(self, rows: list[Request]) -> Output:
        """Return the output in the form of transformers."""
        emitted = [row.tokens[row.prompt :] for row in rows]
        longest = max(map(len, emitted))
        pad = self._pad(min(map(len, emitted)) < longest)
        ends = [[*tokens, *[pad] * (longest - len(tokens))] for tokens in emitted]
        new = torch.tensor(ends, dtype=torch.int64, device=self.prompts.device)
        sequences = torch.cat([self.prompts, new], dim=1)
        if not self.config.return_dict_in_generate:
            return sequences
        recorders = [
            row.reader.recorder
            for row in rows
            if isinstance(row.reader, StopRules) and row.reader.recorder
        ]
        scores = steps([recorder.scores for recorder in recorders], longest, pad)
        logits = steps([recorder.logits for recorder in recorders], longest, pad)
        shown: dict[str, Any] = dict(
            sequences=sequences,
            scores=scores if self.config.output_scores else None,
            logits=logits if self.config.output_logits else None,
        )
        # speech models go on with this output, and expect nothing else in it
        if self.features:
            return GenerateEncoderDecoderOutput(**shown)
        kind = SpeculativeOutput if self.source is None else SpeculativeSeq2SeqOutput
        return kind(
            **shown,
            stats=tuple(row.stats for row in rows),
            seeds=tuple(row.seed for row in rows),
        )

    def _pad(self, needed: bool) -> int:
        token = getattr(self.config, "_pad_token_tensor", None)
        if token is None and needed:
            raise InvalidRequest(
                "cannot pad rows of different lengths: the padding token is not set. "
                "Set 'pad_token_id'"
            )
        return 0 if token is None else int(token)


def _seeds(count: int, seed: int | None, sample: bool) -> list[int]:
    """Return one seed per row; greedy rows take nothing from torch's generator."""
    if seed is None:
        seed = int(torch.randint(2**63 - 1, ())) if sample else 0
    if not 0 <= seed < 2**63:
        raise InvalidRequest(
            f"cannot use 'seed' {seed}: it is out of range. Give None, or an integer "
            "in [0, 2**63)"
        )
    return [seed_of(seed, row) for row in range(count)]
