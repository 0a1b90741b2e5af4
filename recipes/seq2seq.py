"""Train a small encoder-decoder from scratch on source-answer pairs, then a smaller one
on its answers, as its draft.

$ python recipes/pairs.py train.jsonl.gz pairs/train.jsonl.gz
$ python recipes/pairs.py eval.jsonl.gz pairs/eval.jsonl.gz
$ python recipes/seq2seq.py target --pairs pairs/train.jsonl.gz --eval pairs/eval.jsonl.gz --out seq2seq
$ python recipes/seq2seq.py draft --pairs pairs/train.jsonl.gz --out seq2seq

Made for a CPU with AMX. Both commands resume where they were stopped.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from family import CrossEntropy, Schedule, Training, learn, shown, tighten
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AutoTokenizer,
    GenerationConfig,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.t5.modeling_t5 import T5DenseGatedActDense, T5LayerNorm

from foreword import LLM, bundled
from foreword_train import job
from foreword_train.data.records import Record, read
from foreword_train.data.regenerate import Wishes, regenerate
from foreword_train.devices import keep_freed
from foreword_train.job import Job
from foreword_train.methods.lm import smaller_seq2seq
from foreword_train.registry import LmOptions
from foreword_train.report.measure import Questions
from foreword_train.trainer import TrainingConfig

LENGTHS = ((64, 48), (128, 112))
"""Tokens of source and of answer in a row. A row has the shortest of these that hold
its pairs; Longer pairs are left out."""
ROWS = 2048
"""Tokens of source in a forward."""
POOL = 6000
"""Pairs packed together."""
OPEN = 64
"""Rows with room that a pair may join."""
SIZES: dict[str, Any] = {
    "d_model": 256,
    "d_ff": 704,
    "num_heads": 8,
    "d_kv": 32,
    "feed_forward_proj": "gated-gelu",
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
"""7.7 million parameters with three layers each, 15 MB; one embedding for source,
answer and output.
"""
OUTER = ("shared", "relative_attention_bias")
"""Matrices that are tables."""
TEMPLATE = "{{ messages | map(attribute='content') | join('\\n') }}<|end|>"
"""A chat is its messages, one a line."""
CHUNK = 10_000
"""Pairs tokenized together."""
Pair = tuple[Tensor, Tensor]
"""Tokens of source and answer, each with its end, int32."""


# ---- data: pairs side by side in rows; since positions are relative, each is read as
# if alone


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows: source, decoder input, next tokens (-1: not learnt), and the index of
    the pair at each token.
    """

    source: Tensor
    tokens: Tensor
    next: Tensor
    source_pair: Tensor
    pair: Tensor

    @classmethod
    def of(cls, rows: list[list[Pair]], lengths: tuple[int, int]) -> Rows:
        source, tokens = (
            torch.zeros(len(rows), length, dtype=torch.int64) for length in lengths
        )
        source_pair, pair = (torch.full((len(rows), length), -1) for length in lengths)
        after = torch.full_like(pair, -1)
        for row, pairs in enumerate(rows):
            begin = [0, 0]
            for number, (asked, written) in enumerate(pairs):
                here, there = (
                    slice(begin[0], begin[0] + len(asked)),
                    slice(begin[1], begin[1] + len(written)),
                )
                source[row, here], source_pair[row, here] = asked, number
                after[row, there], pair[row, there] = written, number
                tokens[row, there.start + 1 : there.stop] = written[:-1]
                begin = [here.stop, there.stop]
        return cls(source, tokens, after, source_pair, pair)

    @property
    def biases(self) -> tuple[Tensor, Tensor, Tensor]:
        """Biases on the scores of encoder, decoder and cross attention: 0 within a
        pair, -1e4 elsewhere.
        """
        past = torch.ones(2 * self.pair.shape[1:], dtype=torch.bool).tril()
        seen = (
            _same(self.source_pair, self.source_pair),
            _same(self.pair, self.pair) & past,
            _same(self.pair, self.source_pair),
        )
        inner, own, cross = (
            torch.zeros(one.shape).masked_fill_(~one, -1e4)[:, None].bfloat16()
            for one in seen
        )
        return inner, own, cross


def _same(query: Tensor, key: Tensor) -> Tensor:
    return query[:, :, None] == key[:, None]


def encoded(pairs: Path, tokenizer: Any, every: int = 1) -> list[Pair]:
    """Return source and answer of one record in `every` as tokens, without those longer
    than the longest row.
    """
    with gzip.open(pairs, "rt", encoding="utf-8") as lines:
        texts = [
            [message["content"] for message in json.loads(line)["messages"]]
            for line in islice(lines, 0, None, every)
        ]
    most, found = LENGTHS[-1], list[Pair]()
    for start in range(0, len(texts), CHUNK):
        some = texts[start : start + CHUNK]
        sources, answers = (
            tokenizer([one[at] for one in some], verbose=False)["input_ids"]
            for at in (0, 1)
        )
        for source, answer in zip(sources, answers, strict=True):
            if len(source) <= most[0] and len(answer) <= most[1]:
                found.append(
                    (
                        torch.tensor(source, dtype=torch.int32),
                        torch.tensor(answer, dtype=torch.int32),
                    )
                )
    return found


def dealt(pairs: list[Pair], seed: int) -> Iterator[Rows]:
    """Yield one shuffled epoch.

    Each pair of a pool, longest first, goes to the fullest row with room for it.
    """
    shuffle = np.random.default_rng(seed)
    order = shuffle.permutation(len(pairs))
    waiting: dict[tuple[int, int], list[list[Pair]]] = {
        lengths: [] for lengths in LENGTHS
    }
    for start in range(0, len(order), POOL):
        pool = [pairs[at] for at in order[start : start + POOL]]
        for lengths, rows in _packed(pool):
            waiting[lengths].append(rows)
        ready: list[tuple[tuple[int, int], list[list[Pair]]]] = []
        for lengths, many in waiting.items():
            shuffle.shuffle(many)  # pyright: ignore[reportArgumentType]  # a list may be shuffled too
            count = ROWS // lengths[0]
            while len(many) >= count:
                ready.append((lengths, many[:count]))
                del many[:count]
        shuffle.shuffle(ready)  # pyright: ignore[reportArgumentType]
        for lengths, chosen in ready:
            yield Rows.of(chosen, lengths)


def _packed(pool: list[Pair]) -> Iterator[tuple[tuple[int, int], list[Pair]]]:
    """Yield rows of pairs with the lengths of each row."""
    room: list[tuple[int, int, tuple[int, int], list[Pair]]] = []
    for pair in sorted(pool, key=lambda pair: -sum(map(len, pair))):
        asked, written = map(len, pair)
        fits = [
            at for at, row in enumerate(room) if row[0] >= asked and row[1] >= written
        ]
        if fits:
            source, answer, lengths, held = room.pop(
                min(fits, key=lambda at: sum(room[at][:2]))
            )
        else:
            lengths = next(
                one for one in LENGTHS if asked <= one[0] and written <= one[1]
            )
            source, answer, held = *lengths, []
        room.append((source - asked, answer - written, lengths, [*held, pair]))
        if len(room) > OPEN:
            yield room.pop(min(range(OPEN), key=lambda at: sum(room[at][:2])))[2:]
    yield from (row[2:] for row in room)


# ---- the target


class Attention(torch.autograd.Function):
    """softmax(q k + position bias + bias) v as three products: for short rows its
    backward is faster than torch's.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        position: Tensor,
        bias: Tensor,
    ) -> Tensor:
        scores = torch.matmul(query, key.transpose(-1, -2)).add_(position).add_(bias)
        weights = torch.softmax(scores, -1)
        ctx.save_for_backward(query, key, value, weights)
        ctx.positioned = position.requires_grad
        return torch.matmul(weights, value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights = ctx.saved_tensors
        by_weight = torch.matmul(grads[0], value.transpose(-1, -2))
        by_score = torch._softmax_backward_data(by_weight, weights, -1, weights.dtype)
        by_value = torch.matmul(weights.transpose(-1, -2), grads[0])
        by_position = by_score.sum(0, keepdim=True) if ctx.positioned else None
        by_key = torch.matmul(by_score.transpose(-1, -2), query)
        return torch.matmul(by_score, key), by_key, by_value, by_position, None


def attention(
    _: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    position_bias: Tensor,
    **__: Any,
) -> tuple[Tensor, None]:
    """Compute attention in the interface of transformers: [batch, heads,
    length, dim].
    """
    parts = (part.contiguous() for part in (query, key, value))
    return Attention.apply(*parts, position_bias, attention_mask).transpose(
        1, 2
    ).contiguous(), None


class Norm(torch.autograd.Function):
    """Division by the root mean square, times a weight, with one pass less than torch's
    backward takes.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        scale = torch.rsqrt(
            hidden.float().square().mean(-1, keepdim=True) + epsilon
        ).to(hidden.dtype)
        normal = hidden * scale
        ctx.save_for_backward(normal, scale, weight)
        return normal * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        normal, scale, weight = ctx.saved_tensors
        by_normal = grads[0] * weight
        by_weight = (grads[0] * normal).flatten(0, -2).sum(0)
        along = (by_normal * normal).mean(-1, keepdim=True)
        return (by_normal - normal * along) * scale, by_weight, None


def fast(model: T5ForConditionalGeneration) -> None:
    """Compute norms and activations of the model in fewer passes."""
    for part in model.modules():
        if isinstance(part, T5LayerNorm):
            part.forward = _norm(part)
        elif isinstance(part, T5DenseGatedActDense):
            part.act = nn.GELU("tanh")


def _norm(layer: T5LayerNorm) -> Any:
    return lambda hidden: Norm.apply(hidden, layer.weight, layer.variance_epsilon)


def _cross_entropy(logits: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return summed cross entropy, and its gradient by the logits."""
    scores = torch.log_softmax(logits, -1, dtype=torch.float32)
    loss = -scores.gather(1, right[:, None]).sum()
    gradient = scores.exp_()
    gradient[torch.arange(len(right)), right] -= 1
    return loss, gradient.bfloat16()


BIAS, LOUD, SHARP, BOTH, GAIN = 6.0, 1.5, 0.9, (1.4, 0.7), 12.0
"""Sizes of heads that copy: score of the position read, what is written beside a token,
scale of queries and keys, shares of the last token and of the one before it, and the
logit of the copied token over the logits of others."""


@torch.no_grad()
def copying(model: T5ForConditionalGeneration) -> T5ForConditionalGeneration:
    """Set up heads that copy: what follows in the source is looked up by the two tokens
    that were written last.

    Heads of the encoder read the token before, and the one before that; heads of the
    decoder read the token before. Those of the second decoder layer find the place in
    the source that comes after the same two tokens, and write the token there. To learn
    this from random weights takes thousands of steps.
    """
    config, dim = model.config, model.config.d_kv
    # other outputs to the residual stream start small
    for name, weight in model.named_parameters():
        if name.endswith((".o.weight", ".wo.weight")):
            weight.mul_(0.3)
    quarter = config.num_heads // 4
    size = quarter * dim
    orthogonal = [
        nn.init.orthogonal_(torch.empty(rows, config.d_model))
        for rows in (2 * size, 2 * size, size)
    ]
    (one, two), (first, second), past = (
        orthogonal[0].split(size),
        orthogonal[1].split(size),
        orthogonal[2],
    )
    encoder, decoder = (
        part.block[0].layer[0].SelfAttention for part in (model.encoder, model.decoder)
    )
    for attention, heads in (
        (encoder, ((1, one, first), (2, two, second))),
        (decoder, ((1, two, past),)),
    ):
        # a bucket of relative positions is a distance here
        for place, (back, reads, writes) in enumerate(heads):
            span = slice(place * size, (place + 1) * size)
            attention.relative_attention_bias.weight[
                back, place * quarter : (place + 1) * quarter
            ] = BIAS
            attention.q.weight[span] *= 0.1
            attention.v.weight[span], attention.o.weight[:, span] = (
                reads,
                LOUD * writes.T,
            )
    cross = (
        model.decoder.block[min(1, config.num_decoder_layers - 1)]
        .layer[1]
        .EncDecAttention
    )
    queries, keys = (
        torch.cat(
            [
                own.view(-1, dim // 2, config.d_model),
                other.view(-1, dim // 2, config.d_model),
            ],
            1,
        )
        for own, other in ((BOTH[0] * one, BOTH[1] * past), (first, second))
    )
    token = nn.init.orthogonal_(torch.empty(config.num_heads * dim, config.d_model))
    for weight, heads in ((cross.q.weight, queries), (cross.k.weight, keys)):
        weight.copy_(
            SHARP * heads.repeat(config.num_heads // len(heads), 1, 1).view_as(weight)
        )
    # the token there, not those before it
    cross.v.weight.copy_(token - token @ orthogonal[1].T @ orthogonal[1])
    cross.o.weight.copy_(GAIN * token.T)
    return model


class PairTraining(Training):
    """Training of a T5 on the answers of all pairs: in bfloat16, beside float32 weights
    for the optimisers.

    Matrices by Muon, the rest by AdamW.
    """

    def __init__(self, tokenizer: Any, layers: int) -> None:
        AttentionInterface.register("pairs", attention)
        torch.manual_seed(0)
        config = T5Config(
            vocab_size=len(tokenizer),
            num_layers=layers,
            attn_implementation="pairs",
            **SIZES,
        )
        self.exact = copying(T5ForConditionalGeneration(config))
        self.model = copy.deepcopy(self.exact)
        nn.Module.to(self.model, torch.bfloat16)
        fast(self.model)
        named = dict(self.exact.named_parameters())
        inner = {
            name
            for name, weight in named.items()
            if weight.dim() == 2 and name.split(".")[-2] not in OUTER
        }
        query = {name for name in inner if name.endswith(".q.weight")}
        norms = named.keys() - inner - {"shared.weight"}
        groups = [
            [named[name] for name in named if name in some]
            for some in (inner - query, query, norms)
        ]
        self.optimizers = (
            # scores are not divided by the root of the head's size: queries move less
            # instead
            torch.optim.Muon(
                [
                    {"params": groups[0]},
                    {"params": groups[1], "scale": config.d_kv**-0.5},
                ],
                weight_decay=0.05,
                momentum=0.95,
                adjust_lr_fn="match_rms_adamw",
            ),
            torch.optim.AdamW(  # T5's embedding is as large as its hidden states
                [
                    {"params": groups[2]},
                    {"params": [self.exact.shared.weight], "scale": 3.0},
                ],
                betas=(0.9, 0.95),
                weight_decay=0.0,
                fused=True,
            ),
        )

    def read(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the scaled hidden states before each learnt token, and that token."""
        inner, own, cross = rows.biases
        states = self.model.encoder(
            input_ids=rows.source, attention_mask=inner
        ).last_hidden_state
        hidden = self.model.decoder(
            input_ids=rows.tokens,
            attention_mask=own,
            encoder_hidden_states=states,
            encoder_attention_mask=cross,
            use_cache=False,
        ).last_hidden_state
        learnt = rows.next >= 0
        return hidden[learnt] * self.model.config.d_model**-0.5, rows.next[learnt]

    def step(self, group: list[Rows], rate: float) -> tuple[float, int]:
        """Make one step of the optimisers.

        Returns the mean loss, in nats a token, and the tokens.
        """
        count, loss = sum(int((rows.next >= 0).sum()) for rows in group), 0.0
        both = list(zip(self.exact.parameters(), self.model.parameters(), strict=True))
        for rows in group:
            hidden, right = self.read(rows)
            part = (
                CrossEntropy.apply(
                    hidden, self.model.lm_head.weight, right, _cross_entropy, 1024
                )
                / count
            )
            part.backward()
            loss += float(part.detach())
            for exact, fast in both:
                exact.grad = (
                    fast.grad.float()
                    if exact.grad is None
                    else exact.grad.add_(fast.grad)
                )
                fast.grad = None
        nn.utils.clip_grad_norm_(self.exact.parameters(), 1.0)
        for optimizer in self.optimizers:
            for part in optimizer.param_groups:
                part["lr"] = rate * part.get("scale", 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._copy()
        return loss, count

    @torch.no_grad()
    def _copy(self) -> None:
        for exact, fast in zip(
            self.exact.parameters(), self.model.parameters(), strict=True
        ):
            fast.copy_(exact)

    def state(self) -> dict[str, Any]:
        return {
            "model": self.exact.state_dict(),
            "optimizers": [part.state_dict() for part in self.optimizers],
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.exact.load_state_dict(state["model"])
        for optimizer, part in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(part)
        self._copy()

    def save(self, folder: Path, tokenizer: Any) -> None:
        """Write the model in bfloat16, with its tokenizer, for transformers and
        Foreword.
        """
        model = T5ForConditionalGeneration(copy.deepcopy(self.exact.config))
        model.load_state_dict(self.exact.state_dict())
        model.generation_config = GenerationConfig(
            decoder_start_token_id=0, eos_token_id=0, pad_token_id=0
        )
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        tighten(folder / "tokenizer.json")


def opened() -> Any:
    """Return the bundled tokenizer, ending each text and without turns."""
    tokenizer = AutoTokenizer.from_pretrained(bundled.target())
    end = tokenizer.eos_token
    ends = TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, tokenizer.eos_token_id)]
    )
    tokenizer.backend_tokenizer.post_processor = ends
    tokenizer.chat_template = TEMPLATE
    return tokenizer


app = typer.Typer(no_args_is_help=True, help=__doc__)
Pairs = Annotated[Path, typer.Option(help="Pairs to train on, .jsonl.gz.")]


@app.command()
def target(
    *,
    pairs: Pairs,
    held_out: Annotated[
        Path, typer.Option("--eval", help="Held-out pairs, .jsonl.gz.")
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for target/, checkpoints and the log.")
    ],
    layers: Annotated[
        int, typer.Option(help="Layers of the encoder, and of the decoder.", min=1)
    ] = 3,
    every: Annotated[
        int, typer.Option(help="Interval between the pairs used.", min=1)
    ] = 1,
    steps: int = 4000,
    forwards: Annotated[
        int, typer.Option(help="Forwards of 2,048 source tokens in a step.")
    ] = 1,
    rate: float = 2e-3,
    measure: Annotated[int, typer.Option(help="Steps between measurements.")] = 250,
    keep: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 50,
) -> None:
    """Train the target from scratch."""
    tokenizer = opened()
    data = (
        partial(dealt, encoded(pairs, tokenizer, every)),
        partial(dealt, encoded(held_out, tokenizer)),
    )
    training = PairTraining(tokenizer, layers)
    learn(training, data, Schedule(steps, forwards, rate), out, (measure, keep))
    training.save(out / "target", tokenizer)


@app.command()
def draft(
    *,
    pairs: Pairs,
    out: Annotated[
        Path, typer.Option(help="Folder with target/, for answers and the draft.")
    ],
    every: Annotated[
        int, typer.Option(help="Interval between the pairs used.", min=1)
    ] = 8,
    answered: Annotated[
        int, typer.Option(help="Pairs whose answers the target writes anew.", min=2)
    ] = 8000,
    greedy: Annotated[
        int,
        typer.Option(
            help="Interval between greedy answers; the rest are sampled.", min=2
        ),
    ] = 3,
    steps: Annotated[int, typer.Option(help="Training steps.", min=1)] = 1500,
    rate: float = 2e-3,
    prompts: Annotated[
        int, typer.Option(help="Held-out prompts for the report.", min=0)
    ] = 64,
) -> None:
    """Regenerate answers of pairs with the target, and train a draft on them and on
    further pairs.
    """
    tokenizer = AutoTokenizer.from_pretrained(out / "target")
    records = [one for one in read([pairs])[::every] if _short(one, tokenizer)]
    again, rest = records[:answered], records[answered:]
    llm = LLM(out / "target", method="ngram")
    files = [out / "pairs.jsonl"]
    lines = (
        json.dumps({"messages": one.messages, "source": one.source}, ensure_ascii=False)
        for one in rest
    )
    files[0].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for heat, some in (
        (0.0, again[::greedy]),
        (1.0, [one for at, one in enumerate(again) if at % greedy]),
    ):
        files.append(out / f"answers-{heat:g}.jsonl")
        sampling = Wishes(temperature=heat, max_tokens=LENGTHS[-1][1], batch=64)
        regenerate(
            llm,
            some,
            files[-1],
            sampling,
            lambda tally: typer.echo(f"{tally.records:,} records answered"),
        )
    llm.close()
    config = smaller_seq2seq(
        T5Config.from_pretrained(out / "target"), layers=1, encoder_layers=2, hidden=128
    )
    torch.manual_seed(0)
    copying(T5ForConditionalGeneration(config)).save_pretrained(out / "begun")
    tokenizer.save_pretrained(out / "begun")
    task = Job(
        options=LmOptions(draft=str(out / "begun")),
        target=str(out / "target"),
        data=tuple(files),
        out=out / "draft",
        length=256,
        questions=Questions(prompts=prompts),
        recipe=TrainingConfig(
            steps=steps, batch=8, learning_rate=rate, optimizer="muon"
        ),
    )
    job.run(task, resume=True, watch=shown, note=typer.echo)
    tighten(out / "draft" / "tokenizer.json")


def _short(record: Record, tokenizer: Any) -> bool:
    """Return whether a pair is one that the target has learnt."""
    texts = zip(record.turns, LENGTHS[-1], strict=True)
    return all(len(tokenizer(text)["input_ids"]) <= most for (_, text), most in texts)


if __name__ == "__main__":
    keep_freed()
    app()
