"""Draft models of encoder-decoders, with the target's encoder, another or none."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import tiny_models
import tiny_seq2seq
from foreword import LLM, SamplingParams
from foreword.errors import InvalidRequest
from foreword.model import Model

NAMES = ["t5", "bart", *tiny_seq2seq.in_c("t5")]
SOURCES = [[70, 80, 90, 100], [200, 201, 202, 203, 204, 205, 206, 207, 208]]


def changed(name: str) -> PreTrainedModel:
    """The target with a slightly different LM head."""
    model = tiny_seq2seq.build(name)
    model.lm_head.weight.data += 0.02 * torch.randn(
        model.lm_head.weight.shape, generator=torch.Generator()
    )
    return model


def decoder(target: PreTrainedModel) -> PreTrainedModel:
    """The target's decoder alone, as AutoModelForCausalLM loads it."""
    config, weights = copy.deepcopy(target.config), target.state_dict()
    config.tie_word_embeddings = False
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict({name: weights[name] for name in model.state_dict()})
    return model.eval()


@contextmanager
def counted(*models: PreTrainedModel) -> Iterator[list[int]]:
    """Yield the runs of the encoders of these models."""
    runs = [0] * len(models)

    def counts(at: int):
        def count(*_):
            runs[at] += 1

        return count

    hooks = [
        model.get_encoder().register_forward_hook(counts(at))
        for at, model in enumerate(models)
    ]
    yield runs
    for hook in hooks:
        hook.remove()


def compare(target: Model, name: str, draft: object, **more) -> int:
    """Check that the draft model changes no token; return how many are accepted."""
    options = dict(max_tokens=16, ignore_eos=True, n=2, **more)
    asked = [SamplingParams(temperature=heat, seed=3, **options) for heat in (0.0, 1.0)]
    tokenizer, accepted = tiny_seq2seq.tokenizer(name), 0
    plain = LLM(target, tokenizer=tokenizer, method="none").generate(SOURCES, asked)
    with (
        LLM(target, tokenizer=tokenizer, draft=draft, method="lm", nodes=4) as llm,
        counted(target.hf) as runs,
    ):
        drafted = llm.generate(SOURCES, asked)
        for one, other in zip(drafted, plain, strict=True):
            assert one.tokens == other.tokens
            assert one.undrafted is None
            assert one.stats.drafted > 0
            accepted += one.stats.accepted
    assert runs == [len(SOURCES)]  # once for both answers, too
    return accepted


@pytest.mark.sample(3)
@pytest.mark.parametrize("saved", [False, True], ids=["memory", "folder"])
@pytest.mark.parametrize("name", NAMES)
def test_an_equal_encoder_runs_once_for_both_models(name, saved, tmp_path):
    target, draft = Model(tiny_seq2seq.build(name), name), changed(name)
    if saved:
        draft.save_pretrained(tmp_path)
        tiny_seq2seq.tokenizer(name).save_pretrained(tmp_path)
        assert compare(target, name, tmp_path) > 25
        return
    made = Model(draft, "draft")
    with counted(draft) as runs:
        assert compare(target, name, made) > 25
    assert runs == [1]  # to see that it is equal


@pytest.mark.sample(6)
@pytest.mark.parametrize("saved", [False, True], ids=["memory", "folder"])
@pytest.mark.parametrize("name", ["bart", "marian"])
def test_a_decoder_alone_drafts_with_the_encoder_of_the_target(name, saved, tmp_path):
    target = Model(tiny_seq2seq.build(name), name)
    draft = decoder(tiny_seq2seq.build(name))
    if saved:
        draft.save_pretrained(tmp_path)
        tiny_seq2seq.tokenizer(name).save_pretrained(tmp_path)
    assert compare(target, name, tmp_path if saved else draft) > 35  # of 50


def test_another_encoder_runs_for_the_draft_model_too():
    target, draft = Model(tiny_seq2seq.build("bart"), "bart"), changed("bart")
    draft.get_encoder().layers[1].fc2.bias.data += 0.01
    made = Model(draft, "draft")
    with counted(draft) as runs:
        assert compare(target, "bart", made) > 25
    assert runs == [1 + len(SOURCES)]


def test_decoder_of_another_hidden_size_is_refused():
    target = Model(tiny_seq2seq.build("bart"), "bart")
    config = tiny_seq2seq.build("bart").config
    config.d_model = 32
    with pytest.raises(
        InvalidRequest, match=r"width 32, and the encoder of .* gives 64"
    ):
        LLM(
            target,
            tokenizer=tiny_seq2seq.tokenizer("bart"),
            draft=AutoModelForCausalLM.from_config(config),
        )


def test_decoder_on_another_device_than_the_encoder_is_refused():
    target = Model(tiny_seq2seq.build("bart"), "bart")
    draft = decoder(tiny_seq2seq.build("bart")).to("meta")
    with pytest.raises(InvalidRequest, match=r"on meta.*encoder, which is on cpu"):
        LLM(target, tokenizer=tiny_seq2seq.tokenizer("bart"), draft=draft)


def test_a_decoder_only_model_drafts_from_the_answer_alone():
    letters = dict.fromkeys(range(100, 104), 50.0)
    target = Model(tiny_seq2seq.build("bart"), "bart")
    draft = Model(tiny_models.build("llama"), "llama")
    assert compare(target, "bart", draft, logit_bias=letters) > 10
