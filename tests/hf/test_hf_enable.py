"""Under `foreword.enable()` every call works: served alike, or handed over."""

import warnings
from functools import partial

import pytest
import torch
import transformers as hf

import foreword
import tiny_models
import tiny_vision
from foreword import InvalidRequest
from generating import OURS, OUTPUT, CollectedStream, few, greedy, ids
from other_tokenizers import NEAR, TRANSLATED
from tiny_sizes import sizes

pytestmark = pytest.mark.usefixtures("four")
UNCHANGED = "transformers runs this call unchanged"


class Counting(hf.LogitsProcessor):
    """Keeps a state: what it allows depends on how often it was called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        forbidden = torch.arange(scores.shape[-1]) % 5 != self.calls % 5
        return scores.masked_fill(forbidden, -torch.inf)


class Counted(hf.StoppingCriteria):
    """Ends every row after seven calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores, **kwargs):
        self.calls += 1
        return torch.full((len(input_ids),), self.calls >= 7)


class Thirds(hf.StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] % 3 == 0


@pytest.fixture(scope="module")
def model():
    return tiny_models.build("llama")


@pytest.fixture(scope="module")
def small():
    return tiny_models.build("llama")


def right(*lengths):
    """The prompts of `ids`, padded on the right."""
    inputs = ids(*lengths)
    for values in inputs.values():
        for row, length in enumerate(lengths):
            values[row] = values[row].roll(length - max(lengths))
    return inputs


def filled(model):
    cache, inputs = hf.DynamicCache(config=model.config), ids(20)
    with torch.no_grad():
        model(inputs["input_ids"][:, :12], past_key_values=cache)
    return inputs | {"past_key_values": cache}


def outcome(call):
    """A call's result or error, the random stream after it, and our warnings."""
    torch.manual_seed(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - that too must be as it was
            result = (type(error), str(error))
    said = [str(one.message) for one in caught]
    ours = [one for one in said if "; transformers runs" in one]
    return result, torch.get_rng_state(), ours


# ---- what goes to transformers


def handed(says, make=dict, rows=(11,), **options):
    """A call whose arguments are made anew for each use, and what is said of it."""
    return lambda: ids(*rows) | make(), options, says


BOTH = (11, 6)
RIGHT = dict(input_ids=torch.tensor([[4, 5, 6, 0]]))
RIGHT["attention_mask"] = torch.tensor([[1, 1, 1, 0]])
PADDED = "padded on the right"
ONE, MARK = torch.tensor([[3]]), hf.WatermarkingConfig()
PLACES, LONGER = torch.arange(11)[None], torch.ones(1, 15)
NO_TYPES = torch.zeros(1, 11)


def counting():
    return dict(logits_processor=[Counting()])


def counted():
    return dict(stopping_criteria=[Counted()])


def in_thirds():
    return dict(stopping_criteria=[Thirds()])


def streaming():
    return dict(streamer=CollectedStream())


def empty_cache():
    return dict(past_key_values=hf.DynamicCache())


def unmasked(inputs):
    return dict(input_ids=inputs["input_ids"])


HANDED = {
    "num_beams": handed("num_beams=2: beam search is not supported; ", num_beams=2),
    "penalty_alpha": handed("contrastive", penalty_alpha=0.5, top_k=4),
    "attentions": handed("output_attentions", output_attentions=True),
    "hidden": handed("output_hidden_states", output_hidden_states=True),
    "guidance": handed("guidance_scale=1.5", guidance_scale=1.5),
    "negative": handed("guidance", negative_prompt_ids=ONE, guidance_scale=1.5),
    "watermark": handed("watermark", watermarking_config=MARK, do_sample=True),
    "healing": handed("token_healing", token_healing=True),
    "synced": handed("synced_gpus", synced_gpus=True),
    "state": handed("Counting", counting, do_sample=True),
    "state, two rows": handed("Counting", counting, BOTH),
    "criterion, two rows": handed("Counted", counted, BOTH, eos_token_id=7),
    "no end, two rows": handed("continue until all", in_thirds, BOTH),
    "streamer, two rows": handed("streamer", streaming, BOTH),
    "right": handed(PADDED, lambda: right(11, 6)),
    "right, one row": handed(PADDED, lambda: RIGHT),
    "right, no mask": (lambda: unmasked(right(11, 6)), dict(pad_token_id=0), PADDED),
    "positions": handed("position_ids", lambda: dict(position_ids=PLACES * 2)),
    "an empty cache": handed("past_key_values", empty_cache),
    "a long mask": handed("its shape differs", lambda: dict(attention_mask=LONGER)),
    "wrong type": handed("token_type_ids", lambda: dict(token_type_ids=NO_TYPES)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HANDED)
def test_call_that_is_not_served_is_unchanged(model, small, name):
    check_handed(model, name, "assistant", assistant_model=small)
    check_handed(model, name, "lookup", prompt_lookup_num_tokens=3)
    check_handed(model, name, "asked")


def check_handed(model, name, spelling, **asks):
    """Check that transformers runs a call that asks for drafts in this way."""
    make, options, says = HANDED[name]
    options = dict(max_new_tokens=6, **OUTPUT) | {"do_sample": False} | options | asks
    given = make()
    want, stream, _ = outcome(partial(model.generate, **given, **options))
    again = make()
    asked = {"speculative_decoding": True} if spelling == "asked" else {}
    with foreword.enable():
        got, left, said = outcome(partial(model.generate, **again, **options, **asked))
    assert len(said) == 1, spelling
    assert says in said[0], spelling
    assert said[0].endswith(UNCHANGED)
    if isinstance(want, tuple):
        assert got == want, f"{spelling}: another error than before"
        return
    assert not hasattr(got, "stats"), spelling
    assert got.sequences.tolist() == want.sequences.tolist(), spelling
    assert torch.equal(left, stream), spelling
    if "streamer" in given:
        assert again["streamer"].values == given["streamer"].values, spelling


@pytest.mark.parametrize("asks", ["assistant", "lookup"])
def test_a_filled_cache_gets_the_text_of_plain_decoding(model, small, asks):
    options = greedy(12)
    want = model.generate(**filled(model), **options)
    more = {"assistant": dict(assistant_model=small)}
    options |= more.get(asks, dict(prompt_lookup_num_tokens=3))
    with (
        foreword.enable(),
        pytest.warns(UserWarning, match="past_key_values: .*transformers runs this"),
    ):
        assert model.generate(**filled(model), **options).tolist() == want.tolist()


def test_a_draft_model_is_left_out_where_it_cannot_help(model, small):
    options = ids(11) | greedy(6) | dict(num_beams=2)
    want = model.generate(**options)
    with (
        foreword.enable(),
        pytest.warns(UserWarning, match="num_beams=2: .* without the draft model"),
    ):
        got = model.generate(**options, draft_model=small)
    assert got.tolist() == want.tolist()


# ---- what is served

ONE_ROW, TWO_ROWS = partial(ids, 11), partial(ids, 11, 6)
PAD_ENDS = dict(pad_token_id=0, eos_token_id=0)
RENORMALIZED = dict(renormalize_logits=True, remove_invalid_values=True)
OF_THE_ENCODER = dict(encoder_repetition_penalty=1.4, encoder_no_repeat_ngram_size=2)
TWELVE = hf.GenerationConfig(max_new_tokens=12)
HOLES = torch.tensor([[1, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1]])


SERVED = {
    "plain": (ONE_ROW, {}),
    "two rows": (TWO_ROWS, {}),
    "static": (ONE_ROW, dict(cache_implementation="static")),
    "no cache": (ONE_ROW, dict(use_cache=False)),
    "chunks": (ONE_ROW, dict(prefill_chunk_size=4)),
    "bias": (TWO_ROWS, dict(sequence_bias=[[[4], 9.0]])),
    "renormalized": (TWO_ROWS, RENORMALIZED),
    "encoder": (TWO_ROWS, OF_THE_ENCODER),
    "max_length": (ONE_ROW, dict(max_new_tokens=None, max_length=23)),
    "max_time": (ONE_ROW, dict(max_time=1000.0)),
    "not synced": (ONE_ROW, dict(synced_gpus=False, logits_to_keep=1, num_beams=1)),
    "criterion": (lambda: ids(11) | counted(), {}),
    "streamer": (lambda: ids(11) | streaming(), {}),
    "prefix": (TWO_ROWS, dict(prefix_allowed_tokens_fn=few)),
    "no mask": (lambda: unmasked(ids(11)), {}),
    "no mask, padding": (lambda: unmasked(ids(11, 6)), dict(pad_token_id=0)),
    "padding that ends": (lambda: unmasked(right(11, 6)), PAD_ENDS),
    "holes": (lambda: ids(11) | {"attention_mask": HOLES}, {}),
    "positions": (lambda: ids(11) | {"position_ids": PLACES}, {}),
    "int32": (lambda: dict(input_ids=ids(11)["input_ids"].int()), {}),
    "nothing": (dict, dict(bos_token_id=3, max_new_tokens=12)),
    "beyond the context": (partial(ids, 250), {}),
    "a configuration": (ONE_ROW, dict(generation_config=TWELVE)),
}


@pytest.mark.sample(4)
@pytest.mark.filterwarnings("ignore:.*synced")
@pytest.mark.parametrize("name", SERVED)
def test_served_call_has_the_text_of_plain_decoding(model, small, name):
    make, options = SERVED[name]
    options = dict(**greedy(12), **OUTPUT) | options
    want = model.generate(**(given := make()), **options)
    with foreword.enable():
        got = model.generate(**(again := make()), **options, assistant_model=small)
    assert got.sequences.tolist() == want.sequences.tolist()
    assert got.sequences.dtype == want.sequences.dtype
    assert sum(row.accepted for row in got.stats) > 0
    if "streamer" in given:
        assert again["streamer"].values == given["streamer"].values


def thirds(input_ids, scores):
    """Allow the tokens of one remainder by three, which the last token names."""
    allowed = torch.arange(scores.shape[-1]) % 3 == (input_ids[:, -1:] + 1) % 3
    return scores.masked_fill(~allowed, -torch.inf)


class Says(hf.LogitsProcessor):
    is_pure = True

    def __call__(self, input_ids, scores):
        return thirds(input_ids, scores)


@pytest.mark.parametrize(
    "says", [lambda: foreword.pure(partial(thirds)), Says], ids=["pure", "attribute"]
)
def test_processor_that_says_it_is_pure_is_drafted(model, small, says):
    inputs = ids(11, 6) | dict(stopping_criteria=[foreword.pure(Thirds())])
    inputs["logits_processor"] = [says()]
    options = dict(**greedy(12), **OUTPUT, eos_token_id=7)
    want = model.generate(**inputs, **options)
    with foreword.enable():
        got = model.generate(**inputs, **options, draft_model=small)
    assert got.sequences.tolist() == want.sequences.tolist()
    assert sum(row.accepted for row in got.stats) > 0


def test_object_that_takes_no_attributes_cannot_be_marked_pure():
    with pytest.raises(InvalidRequest, match="as pure: it takes no attributes"):
        foreword.pure(Says().__call__)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"draft_model": 3}, "'draft_model' must be a folder, a hub id or .*, got 3"),
        ({"draft_model": ""}, "'draft_model' must be a folder"),
        ({"speculative_decoding": "yes"}, "'yes': it must be True or False"),
        ({"speculative_decoding": 1}, "cannot use speculative_decoding=1"),
    ],
)
def test_wrong_value_of_an_argument_of_ours_is_refused(model, wrong, says):
    with foreword.enable(), pytest.raises(InvalidRequest, match=says):
        model.generate(**ids(11), max_new_tokens=4, **wrong)


def test_a_temperature_beyond_ours_is_served(model, small):
    options = dict(max_new_tokens=8, do_sample=True, temperature=1000.0, **OUTPUT)
    with foreword.enable():
        assert model.generate(**ids(11), **options, assistant_model=small).stats


def test_none_takes_back_what_a_configuration_says(model):
    config = hf.GenerationConfig(prompt_lookup_num_tokens=3, max_new_tokens=6, **OUTPUT)
    with foreword.enable():
        assert model.generate(**ids(11), generation_config=config).stats
        given = ids(11) | dict(generation_config=config, prompt_lookup_num_tokens=None)
        assert not hasattr(model.generate(**given), "stats")


TEXT = "one two three four five one two three four five one two three"
"""The draft model is right about what follows."""


def test_a_pipeline_is_served(shipped, monkeypatch):
    target, draft, tokenizer = shipped
    make = partial(hf.pipeline, "text-generation", model=target, tokenizer=tokenizer)
    options, seen = greedy(12), []
    want = make()(TEXT, **options)
    with foreword.enable():
        inner = target.generate

        def watched(**given):
            seen.append(inner(**given, **OUTPUT))
            return seen[-1].sequences

        monkeypatch.setattr(target, "generate", watched)
        got = make(assistant_model=draft)(TEXT, **options)
    assert got == want
    assert seen[0].stats[0].accepted > 0


# ---- kinds of model


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["llava", "qwen2-vl", "qwen3-vl", "qwen2.5-vl"])
def test_text_of_a_vision_language_model_is_served(name):
    model = tiny_vision.build(name)
    options = dict(**greedy(10), **OUTPUT, pad_token_id=0)
    for inputs in (ids(9), ids(9, 5)):
        inputs["input_ids"] %= 250  # no places of images
        want = model.generate(**inputs, **options)
        with foreword.enable():
            got = model.generate(**inputs, **options, assistant_model=model)
        assert got.sequences.tolist() == want.sequences.tolist()
        assert sum(row.accepted for row in got.stats) > 0


def test_image_without_a_placeholder_goes_to_transformers():
    model = tiny_vision.build("llava")
    inputs = dict(input_ids=torch.tensor([[3, 4, 5, 6]]))
    inputs["pixel_values"] = torch.randn(1, 3, 32, 32)
    options = greedy(5)
    with (
        foreword.enable(),
        pytest.warns(UserWarning, match=f"input_ids hold no token .*{UNCHANGED}"),
        # of transformers
        pytest.raises(ValueError, match="features and image tokens do not match"),
    ):
        model.generate(**inputs, **options, speculative_decoding=True)


@pytest.mark.filterwarnings("ignore:.*mode 'cache'", "ignore:.*mode 'plain'")
@pytest.mark.parametrize("decoder", [True, False])
def test_bert_is_served_as_a_decoder_only(decoder):
    torch.manual_seed(1)
    named = sizes(32, 48, 2, layers=2, vocab_size=320, initializer_range=0.3)
    config = hf.BertConfig(**named, is_decoder=decoder, pad_token_id=0)
    model = hf.BertLMHeadModel(config).eval()
    options = ids(9) | dict(**greedy(8), eos_token_id=None)
    want = model.generate(**options)
    with foreword.enable(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = model.generate(**options, speculative_decoding=True)
    assert got.tolist() == want.tolist()
    said = [str(one.message) for one in caught]
    assert any("masked language model" in one for one in said) is not decoder


# ---- draft models of another tokenizer


def test_a_draft_of_another_tokenizer_is_translated(shipped):
    target, _, tokenizer = shipped
    foreign = NEAR.model(torch.float32)
    foreign.resize_token_embeddings(8200, mean_resizing=False)
    inputs = tokenizer("Once upon a time there was a little girl", return_tensors="pt")
    options = dict(**greedy(16), **OUTPUT)
    want = target.generate(**inputs, **options)
    theirs = dict(tokenizer=tokenizer, assistant_tokenizer=NEAR.tokenizer())
    with foreword.enable(), pytest.warns(UserWarning, match=TRANSLATED):
        got = target.generate(**inputs, **options, assistant_model=foreign, **theirs)
    assert got.sequences.tolist() == want.sequences.tolist()
    assert got.stats[0].accepted > 0
    for method in ("slem", "tli"):
        how = partial(foreword.generate, **theirs, method=method, drafter=foreign)
        got = target.generate(**inputs, **options, custom_generate=how)
        assert got.sequences.tolist() == want.sequences.tolist()
        assert got.stats[0].accepted > 0


@pytest.mark.parametrize("size", [320, 9000])
def test_a_draft_of_another_tokenizer_is_refused_without_both(shipped, size):
    target, _, tokenizer = shipped
    changes = {"vocab_size": size, "num_hidden_layers": 1}
    config = type(target.config)(**target.config.to_dict() | changes)
    other = hf.AutoModelForCausalLM.from_config(config)
    inputs = tokenizer("Once upon a time", return_tensors="pt")
    options = greedy(6)
    with pytest.raises(InvalidRequest, match=f"{size} tokens and the target 8192"):
        target.generate(**inputs, **options, **OURS, drafter=other)
    want = target.generate(**inputs, **options)
    with (
        foreword.enable(),
        pytest.warns(UserWarning, match="tokenizer; transformers runs this call"),
    ):
        got = target.generate(**inputs, **options, draft_model=other)
    assert got.tolist() == want.tolist()


# ---- arguments


def test_an_argument_that_is_nearly_one_is_named(model):
    with foreword.enable():
        with pytest.raises(InvalidRequest, match=r"Did you mean 'draft_model'\?"):
            model.generate(**ids(5), draft_modle=model)
        with pytest.raises(InvalidRequest, match=r"Did you mean 'drafter'\?"):
            model.generate(**ids(5), draftr=model, **OURS)
        with pytest.raises(ValueError, match="not used by the model"):
            model.generate(**ids(5), zebra=model)
    mistaken = partial(foreword.generate, draftr=model)
    with pytest.raises(InvalidRequest, match=r"'draftr': .*Did you mean 'drafter'"):
        model.generate(**ids(5), max_new_tokens=3, custom_generate=mistaken)


# ---- processors of the caller


@pytest.mark.parametrize("rows", [(11,), (11, 6)])
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda scores: None, "it returned NoneType"),
        (lambda scores: scores.numpy(), "it returned ndarray"),
        (lambda scores: scores[:, :3], "it returned the shape"),
        (lambda scores: scores.long(), "it returned int64"),
        (lambda scores: scores.to("meta"), "on meta"),
        (lambda scores: scores / 0, "NaN or infinity"),
    ],
)
def test_a_processor_that_returns_no_logits_is_named(model, rows, answer, says):
    class Mistaken(hf.LogitsProcessor):
        def __call__(self, input_ids, scores):
            return answer(scores)

    options = dict(OURS, max_new_tokens=4, logits_processor=[Mistaken()])
    with pytest.raises(InvalidRequest, match=f"logits processor Mistaken: .*{says}"):
        model.generate(**ids(*rows), **options)


def test_a_configuration_that_changes_during_a_call_changes_nothing(model):
    config = hf.GenerationConfig(**greedy(12), **OUTPUT, output_scores=True)
    prepared, _ = model._prepare_generation_config(config)

    class Meddling(hf.StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            prepared.return_dict_in_generate = prepared.output_scores = False
            processors.append(Counting())
            return torch.zeros(len(input_ids), dtype=torch.bool)

    processors = hf.LogitsProcessorList()
    criteria = hf.StoppingCriteriaList([hf.MaxLengthCriteria(23), Meddling()])
    given = dict(generation_config=prepared, logits_processor=processors)
    given |= dict(stopping_criteria=criteria)
    got = foreword.generate(model, ids(11)["input_ids"], **given)
    want = model.generate(**ids(11), generation_config=config)
    assert got.sequences.tolist() == want.sequences.tolist()
    assert len(got.scores) == 12
