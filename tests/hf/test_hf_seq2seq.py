"""The drop-in gives what transformers gives of encoder-decoders: tokens and shapes."""

import warnings
from functools import cache, partial

import pytest
import torch
import transformers as hf
from torch.nn.utils.rnn import pad_sequence
from transformers.modeling_outputs import BaseModelOutput

import foreword
import tiny_models
import tiny_seq2seq
from foreword import InvalidRequest
from foreword.hf import SpeculativeSeq2SeqOutput
from generating import OURS, OUTPUT, Alternate, CollectedStream, Sum, few, greedy
from grids import slow_case

FAMILIES = ["t5", "bart", "mbart", "marian", "m2m100"]
UNCHANGED = "transformers runs this call unchanged"


@cache
def built(name):
    return tiny_seq2seq.build(name)


@cache
def draft(name):
    """A draft model that differs a little, so that some draft tokens are rejected."""
    model = tiny_seq2seq.build(name)
    noise = torch.Generator().manual_seed(3)
    weight = model.lm_head.weight
    weight.data += torch.randn(weight.shape, generator=noise) * 0.05
    return model


@pytest.fixture
def model():
    return built("t5")


def sources(*lengths, pad=1):
    """Random sources, said twice, padded on the right, and their mask."""
    noise = torch.Generator().manual_seed(5)
    rows = [
        torch.randint(60, 310, (one,), generator=noise).repeat(2) for one in lengths
    ]
    padded = partial(pad_sequence, batch_first=True)
    return dict(
        input_ids=padded(rows, padding_value=pad),
        attention_mask=padded([torch.ones_like(row) for row in rows]),
    )


def how(drafter, name="t5"):
    """Arguments that let a drafter propose four tokens a round, or none."""
    if drafter == "none":
        return dict(**OURS, method="none")
    own = dict(lm=dict(drafter=draft(name)), ngram={}, suffix=dict(method="suffix"))
    return dict(**OURS, nodes=4, **OUTPUT) | own[drafter]


def accepted(output):
    return sum(row.accepted for row in output.stats)


# ---- the same tokens


@pytest.mark.sample(5)
@pytest.mark.parametrize("asks", ["assistant_model", "prompt_lookup_num_tokens"])
@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_text_of_a_padded_batch_is_that_of_transformers(name, asks):
    model, inputs = built(name), sources(6, 13, 1, 9)
    options = greedy(20)
    want = model.generate(**inputs, **options)
    asked = {asks: draft(name) if asks == "assistant_model" else 4}
    got = model.generate(**inputs, **options, **asked, **how("ngram", name))
    assert got.sequences.dtype == want.dtype
    assert got.sequences.tolist() == want.tolist()
    assert len({tuple(row) for row in want.tolist()}) > 2
    assert sum(row.drafted for row in got.stats) > 0
    if asks == "assistant_model":
        assert accepted(got) > 15


@pytest.mark.sample(10)
@pytest.mark.parametrize("name", [*FAMILIES, *tiny_seq2seq.in_c("t5")])
def test_seed_fixes_the_sampled_text_for_every_drafter(name):
    model, texts = built(name), []
    for drafter in ("none", "lm", "ngram", "suffix"):
        torch.manual_seed(11)
        options = dict(max_new_tokens=12, do_sample=True, top_k=30)
        options |= dict(num_return_sequences=2, **how(drafter, name))
        found = model.generate(**sources(5, 8), **options)
        texts.append(found if drafter == "none" else found.sequences)
        if drafter == "lm":
            assert accepted(found) > 10
    assert texts[0].shape[0] == 4
    assert all(text.tolist() == texts[0].tolist() for text in texts)
    assert len({tuple(row) for row in texts[0].tolist()}) == 4


def test_sampled_text_does_not_depend_on_the_padding_of_its_source(model):
    options = dict(max_new_tokens=20, do_sample=True, seed=3, **how("lm"))
    both = model.generate(**sources(5, 8), **options)
    alone = model.generate(**sources(5), **options)
    length = alone.sequences.shape[1]
    assert both.sequences[0, :length].tolist() == alone.sequences[0].tolist()
    assert accepted(alone) > 0


@pytest.mark.slow
def test_sampled_tokens_have_the_distribution_of_transformers(model):
    inputs = {name: value.repeat(1000, 1) for name, value in sources(6).items()}
    options = dict(max_new_tokens=1, do_sample=True, top_k=4, temperature=0.8)
    theirs = model.generate(**inputs, **options)[:, -1]
    ours = model.generate(**inputs, **options, seed=3, **how("none"))[:, -1]
    shares = [torch.bincount(tokens, minlength=320) / 1000 for tokens in (theirs, ours)]
    assert (shares[0] > 0).sum() > 1
    assert (shares[0] - shares[1]).abs().max() < 0.08


@pytest.mark.parametrize("name", ["m2m100", slow_case("mbart")])
def test_the_language_is_that_of_the_call(name):
    model, inputs, texts = built(name), sources(9, 4), []
    for language in (20, 33):
        options = dict(**greedy(16), forced_bos_token_id=language)
        want = model.generate(**inputs, **options)
        got = model.generate(**inputs, **options, **how("lm", name))
        assert got.sequences.tolist() == want.tolist()
        assert got.sequences[:, 1].tolist() == [language] * 2
        assert accepted(got) > 0
        texts.append(got.sequences[:, 2:].tolist())
    assert texts[0] != texts[1]


EVEN, ODD = list(range(0, 320, 2)), list(range(1, 320, 2))


def begun(tokens, mask=None):
    """Arguments of a text that the caller has begun."""
    given = dict(decoder_input_ids=torch.tensor(tokens))
    return given if mask is None else given | dict(decoder_attention_mask=mask)


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    "options",
    [
        dict(repetition_penalty=1.7),
        dict(no_repeat_ngram_size=2),
        dict(encoder_no_repeat_ngram_size=1),
        dict(encoder_repetition_penalty=1.5),
        dict(bad_words_ids=[[5], [7, 9]] + [[token] for token in range(100, 200)]),
        dict(min_new_tokens=9, eos_token_id=list(range(0, 320, 3))),
        dict(min_length=12, eos_token_id=list(range(0, 320, 3))),
        dict(max_new_tokens=None, max_length=15),
        dict(suppress_tokens=EVEN, begin_suppress_tokens=list(range(1, 320, 4))),
        dict(sequence_bias=[[[4], 9.0], [[4, 8], -50.0]]),
        dict(exponential_decay_length_penalty=(3, 1.2)),
        dict(forced_bos_token_id=44, forced_eos_token_id=11),
        dict(forced_bos_token_id=44, begin_suppress_tokens=ODD),
        dict(decoder_start_token_id=9),
        dict(decoder_start_token_id=[9, 8]),
        begun([[0, 70, 71], [0, 72, 73]]),
        begun([[70, 71], [72, 73]]) | dict(begin_suppress_tokens=ODD),
        begun([[0, 5], [0, 6]], torch.ones(2, 2)),
        dict(logits_processor=[Alternate()]),
        dict(prefix_allowed_tokens_fn=few),
        dict(stopping_criteria=hf.StoppingCriteriaList([Sum()])),
        dict(attention_mask=None),
        dict(do_sample=True, top_k=1, num_return_sequences=2),
        dict(use_cache=False),
        dict(eos_token_id=list(range(0, 320, 9))),
    ],
    ids=lambda options: " ".join(options),
)
def test_options_of_generate_are_obeyed_along_every_path(model, options):
    given = sources(9, 4) | greedy(15) | options
    want = model.generate(**given)
    got = model.generate(**given, **how("lm"))
    assert got.sequences.tolist() == want.tolist()
    assert accepted(got) > 0


def test_settings_of_the_checkpoint_are_obeyed():
    model = tiny_seq2seq.build("bart")
    plain = model.generate(**sources(9, 4), max_length=40, do_sample=False).tolist()
    model.generation_config.update(
        no_repeat_ngram_size=2, min_length=12, max_length=25, suppress_tokens=[70, 80]
    )
    want = model.generate(**sources(9, 4), do_sample=False)
    got = model.generate(**sources(9, 4), do_sample=False, **how("lm", "bart"))
    assert got.sequences.tolist() == want.tolist() != plain
    assert got.sequences.shape == (2, 25)
    assert accepted(got) > 0


# ---- what is returned and streamed


def test_the_output_is_that_of_an_encoder_decoder(model):
    options = dict(**greedy(12), **OUTPUT)
    options |= dict(output_scores=True, output_logits=True)
    options["eos_token_id"] = list(range(0, 320, 9))
    want = model.generate(**sources(7, 4), **options)
    got = model.generate(**sources(7, 4), **options | how("lm"))
    assert isinstance(got, SpeculativeSeq2SeqOutput)
    assert isinstance(got, type(want))
    assert got.sequences.tolist() == want.sequences.tolist()
    assert got.sequences[:, 0].tolist() == [0, 0]
    assert len(got.logits) == len(want.logits) == got.sequences.shape[1] - 1
    for row, stats in enumerate(got.stats):
        for ours, theirs in ((got.logits, want.logits), (got.scores, want.scores)):
            both = [torch.stack(one[: stats.tokens])[:, row] for one in (ours, theirs)]
            torch.testing.assert_close(*both, atol=1e-4, rtol=1e-4)
    assert accepted(got) > 0


def test_streamer_gets_start_tokens_and_end(model):
    streams = [CollectedStream(), CollectedStream()]
    call = partial(model.generate, **sources(5), **greedy(9))
    call(streamer=streams[0])
    got = call(streamer=streams[1], **how("lm"))
    tokens = [[token] for token in got.sequences[0, 1:].tolist()]
    assert streams[1].values == streams[0].values == [[[0]], *tokens]
    assert streams[1].ended == 1


# ---- the model comes back


def modules(model):
    return [(name, type(one), one.training) for name, one in model.named_modules()]


def test_target_and_draft_are_given_back_as_they_were():
    target, small = tiny_seq2seq.build("bart"), tiny_seq2seq.build("bart")
    before = modules(target)
    weights = [weight.clone() for weight in target.parameters()]
    own = target.config._attn_implementation
    target.generate(**sources(5), max_new_tokens=6, **OURS, drafter=small, nodes=3)
    assert modules(target) == before
    assert all(map(torch.equal, weights, target.parameters()))
    assert target.config._attn_implementation == own


# ---- refusals

LEFT = dict(attention_mask=torch.tensor([[0] * 4 + [1] * 6]))
MASKED = begun([[0, 5]], torch.tensor([[0, 1]]))
CACHE = hf.EncoderDecoderCache(hf.DynamicCache(), hf.DynamicCache())


def states(fill):
    return BaseModelOutput(fill(1, 10, 64))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (dict(num_beams=2), ("num_beams=2: beam search .*num_beams=1")),
        (dict(method="dspark"), ("'dspark': T5.* is an encoder-decoder")),
        (dict(inputs_embeds=torch.zeros(1, 4, 64), input_ids=None), "inputs_embeds"),
        (dict(encoder_outputs=states(torch.zeros)), "encoder_outputs"),
        (LEFT, "padding_side = 'right'"),
        (dict(attention_mask=torch.tensor([[1] * 4 + [0] + [1] * 5])), "padded"),
        (MASKED, "decoder_attention_mask"),
        (dict(past_key_values=CACHE), "past_key_values"),
        (dict(output_attentions=True, **OUTPUT), "output_attentions"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_served_is_refused_by_name(model, given, says):
    with pytest.raises(InvalidRequest, match=says):
        model.generate(**sources(5) | dict(max_new_tokens=4, **OURS) | given)


def test_a_draft_model_that_does_not_fit_is_refused(model):
    call = partial(model.generate, **sources(5), max_new_tokens=4, **OURS)
    with pytest.raises(InvalidRequest, match="cannot draft for an encoder-decoder"):
        call(drafter=tiny_models.build("llama"))
    sizes = dict(d_model=32, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=200)
    config = hf.T5Config(**sizes, decoder_start_token_id=0)
    with pytest.raises(InvalidRequest, match=r"200 tokens and the target 320.*the"):
        call(drafter=hf.T5ForConditionalGeneration(config))
    ours, theirs = tiny_seq2seq.tokenizer("t5"), tiny_seq2seq.tokenizer("marian")
    foreign = partial(foreword.generate, tokenizer=ours, drafter=draft("t5"))
    foreign = partial(foreign, assistant_tokenizer=theirs)
    with pytest.raises(InvalidRequest, match="for decoder-only models alone"):
        model.generate(**sources(5), max_new_tokens=4, custom_generate=foreign)
    llama, ids = tiny_models.build("llama"), torch.tensor([[5, 6]])
    with pytest.raises(InvalidRequest, match="cannot draft for a decoder-only model"):
        llama.generate(ids, max_new_tokens=4, **OURS, drafter=model)


def test_an_argument_that_is_nearly_one_is_named(model):
    with foreword.enable():
        with pytest.raises(InvalidRequest, match="Did you mean 'draft_model'"):
            model.generate(**sources(5), draft_modle=model)
        given = sources(5) | begun([[0]], torch.tensor([[1]]))
        model.generate(**given, max_new_tokens=2, speculative_decoding=True)


# ---- enable

SPELLINGS = "assistant_model draft_model prompt_lookup_num_tokens speculative_decoding"


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize("asks", SPELLINGS.split())
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["t5", "m2m100"])
def test_the_spellings_people_use_are_served(name, asks):
    model, given = built(name), sources(6, 13)
    values = {"prompt_lookup_num_tokens": 4, "speculative_decoding": True}
    value = values.get(asks, draft(name))
    options = dict(**greedy(20), **OUTPUT)
    want = model.generate(**given, **options)
    with foreword.enable(), warnings.catch_warnings():
        warnings.simplefilter("error")
        got = model.generate(**given, **options, **{asks: value})
    assert got.sequences.tolist() == want.sequences.tolist()
    # `speculative_decoding` drafts where that is faster here
    assert sum(row.drafted for row in got.stats) > 0 or "decoding" in asks
    if "model" in asks:
        assert accepted(got) > 0
    with foreword.enable():
        same = model.generate(
            given.pop("input_ids"), **given, **options, **{asks: value}
        )
    assert same.sequences.tolist() == want.sequences.tolist()


@pytest.mark.usefixtures("four")
def test_several_texts_of_each_source_are_served(model):
    options = dict(max_new_tokens=12, do_sample=True, num_return_sequences=3, **OUTPUT)
    with foreword.enable():
        torch.manual_seed(2)
        got = model.generate(**sources(6, 13), **options, draft_model=draft("t5"))
    torch.manual_seed(2)
    plain = model.generate(**sources(6, 13), **options, **how("none"))
    assert got.sequences.tolist() == plain.sequences.tolist()
    assert got.sequences.shape == (6, 13)
    assert accepted(got) > 0


EMBEDDINGS = dict(input_ids=None, inputs_embeds=torch.zeros(1, 10, 64))
HANDED = {
    "num_beams": (dict(num_beams=2), "num_beams=2: beam search is not supported"),
    "embeddings": (EMBEDDINGS, "inputs_embeds"),
    "left": (LEFT, "padded elsewhere than on the right"),
    "states": (dict(encoder_outputs=states(torch.ones)), "encoder_outputs"),
    "decoder mask": (MASKED, "decoder_attention_mask"),
    "hidden": (dict(output_hidden_states=True), "output_hidden_states"),
}


@pytest.mark.parametrize("name", HANDED)
def test_call_that_is_not_served_is_unchanged(model, name):
    more, says = HANDED[name]
    given = sources(5) | greedy(8) | more
    want = model.generate(**given)
    with (
        foreword.enable(),
        pytest.warns(UserWarning, match=f"{says}.*{UNCHANGED}") as caught,
    ):
        got = model.generate(**given, speculative_decoding=True)
    assert got.tolist() == want.tolist()
    assert len(caught) == 1


def test_the_encoder_of_a_served_call_runs_once_a_row(model):
    calls = []
    hook = model.get_encoder().register_forward_hook(lambda *call: calls.append(1))
    with foreword.enable():
        model.generate(**sources(6, 13), max_new_tokens=4, prompt_lookup_num_tokens=3)
        calls.clear()
        model.generate(**sources(6, 13), max_new_tokens=4, prompt_lookup_num_tokens=3)
    hook.remove()
    assert len(calls) == 2
