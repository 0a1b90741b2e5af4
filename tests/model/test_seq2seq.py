"""Encoder-decoders from folders: what settings force, and what is refused."""

from functools import cache
from pathlib import Path

import pytest
import torch
import transformers as hf

import starter
import tiny_seq2seq
from folders import edit
from foreword import LLM, InvalidRequest, ModelError, SamplingParams
from foreword.draft.lm import LanguageModelDrafter
from foreword.errors import ContextExceeded
from foreword.model import Model
from foreword.model.cost_table import measured
from foreword.model.loading.config import read_config
from foreword.native.forward import reason as library_reason
from generating import greedy

GREEDY = SamplingParams(temperature=0, max_tokens=20)


def built(name: str) -> LLM:
    model = Model(tiny_seq2seq.build(name), name)
    return LLM(model, tokenizer=tiny_seq2seq.tokenizer(name))


@cache
def llm() -> LLM:
    return built("marian")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_seq2seq.saved("marian", tmp_path)


LOOKUPS = "auto(ngram, suffix)"


def edited(folder: Path, **settings) -> Path:
    edit(folder / "generation_config.json", **settings)
    return folder


def test_a_folder_is_a_target_whose_prompt_is_the_source(folder):
    one = LLM(folder, dtype="float32")
    assert (one.method, one.target.capability.backend) == (LOOKUPS, "pool")
    answer = one.generate("A text.", GREEDY)[0]
    source = one.tokenizer("A text.")["input_ids"]
    model = hf.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)
    options = greedy(20) | dict(num_beams=1)
    expected = model.generate(torch.tensor([source]), **options)[0].tolist()
    assert [*one.target.seq2seq.start, *answer.tokens] == expected
    assert answer.prompt_tokens == source
    assert answer.text == one.tokenizer.decode(answer.tokens, skip_special_tokens=True)
    for drafts in ({}, {"method": "lm"}):
        drafted = LLM(folder, draft=folder, dtype="float32", **drafts)
        assert drafted.generate("A text.", GREEDY)[0].tokens == answer.tokens


@pytest.mark.parametrize(
    ("name", "backend"), [("t5", "native"), ("flan-t5", "native"), ("bart", "pool")]
)
def test_folders_run_in_bfloat16(tmp_path, name, backend):
    one = LLM(tiny_seq2seq.saved(name, tmp_path), dtype="bfloat16")
    backend = backend if library_reason() is None else "pool"
    assert one.target.capability.backend == backend
    options = dict(max_tokens=16, seed=1)
    plain, drafted, again = (
        one.generate("one one one", SamplingParams(**options, **more))[0].tokens
        for more in (dict(method="none"), {}, {})
    )
    assert plain == drafted == again


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (dict(decoder_start_token_id=None, bos_token_id=None), "that the decoder"),
        (dict(forced_bos_token_id=[4, 5]), r"generation settings is \[4, 5\]"),
        (dict(forced_bos_token_id=5000), r"ids \[5000\], and it has 320 tokens"),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(folder, settings, said):
    with pytest.raises(ModelError, match=said):
        Model.load(edited(folder, **settings), dtype="float32")


def test_two_vocabularies_are_refused():
    model = tiny_seq2seq.build("marian")
    model.config.decoder_vocab_size = 100
    with pytest.raises(ModelError, match="320 tokens and its decoder 100"):
        Model(model, "marian")


def test_another_encoder_of_sound_than_whisper_is_refused(tmp_path):
    sides = ("encoder", "decoder")
    sizes = dict.fromkeys((f"{side}_layers" for side in sides), 1)
    sizes |= dict.fromkeys((f"{side}_attention_heads" for side in sides), 2)
    sizes |= dict.fromkeys((f"{side}_ffn_dim" for side in sides), 32)
    config = hf.Speech2TextConfig(**sizes, d_model=32, vocab_size=320)
    model = hf.Speech2TextForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"of the kind speech_to_text.* or whisper"):
        Model.load(tmp_path)
    with pytest.raises(ModelError, match="that read sound only whisper is supported"):
        Model(model)


def test_config_of_an_encoder_decoder_is_refused(folder):
    with pytest.raises(ModelError, match=r"encoder-decoder\. Use a decoder-only"):
        read_config(folder)


@pytest.mark.parametrize(
    "method", ["quantized", "tli", "slem", "cascade(suffix, quantized)"]
)
def test_other_methods_are_refused_with_those_that_work(method):
    with pytest.raises(InvalidRequest, match=r"is an encoder-decoder\. Use one of"):
        llm().generate("A text.", SamplingParams(method=method, max_tokens=8))


def test_an_encoder_decoder_does_not_draft_for_a_decoder(folder):
    with pytest.raises(InvalidRequest, match="needs a decoder-only model as draft"):
        LanguageModelDrafter.load(Model.load(folder), Model.load(starter.draft()), None)


def test_what_reads_the_prompt_itself_is_refused():
    with pytest.raises(InvalidRequest, match="prompt: marian is an encoder-decoder"):
        llm().score("A text.")
    with pytest.raises(InvalidRequest, match="has no chat template"):
        llm().chat([{"role": "user", "content": "A text."}])


def test_source_and_answer_have_a_context_each():
    context = llm().target.context
    with pytest.raises(ContextExceeded, match=f"{context + 1} tokens, the limit is"):
        llm().generate([50] * (context + 1), GREEDY)
    with pytest.raises(ContextExceeded, match=f"Use at most {context - 1}"):
        llm().generate([50], SamplingParams(max_tokens=context))
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    assert llm().generate([50] * context, params)[0].finish_reason == "length"


def test_an_encoder_may_have_a_longer_context():
    led = built("led")
    assert led.target.context == 96
    assert len(led.generate([50] * 128, GREEDY)[0].prompt_tokens) == 128
    with pytest.raises(ContextExceeded, match="has 129 tokens, the limit is 128"):
        led.generate([50] * 129, GREEDY)


def test_a_cost_is_measured_within_a_short_context():
    model = llm().target
    assert measured(model.backend, model.vocab, model.context).seconds[1] > 0


@cache
def multilingual() -> LLM:
    """A model whose settings name no language, and a tokenizer with two."""
    model = tiny_seq2seq.build("m2m100")
    model.generation_config.update(forced_bos_token_id=None)
    tokenizer = tiny_seq2seq.tokenizer("m2m100")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<300>", "<301>"]})
    draft = Model(tiny_seq2seq.build("m2m100"))
    return LLM(Model(model, "m2m100"), tokenizer=tokenizer, draft=draft, nodes=4)


def test_a_request_chooses_the_language_of_its_answer():
    model, one = tiny_seq2seq.build("m2m100"), multilingual()
    source, texts = one.tokenizer("One two. One two.")["input_ids"], []
    for language in ("<300>", "<301>"):
        params = SamplingParams(temperature=0, max_tokens=20, language=language)
        (answer,) = one.generate([source], params)
        begun = one.tokenizer.convert_tokens_to_ids(language)
        options = greedy(21) | dict(forced_bos_token_id=begun, num_beams=1)
        expected = model.generate(torch.tensor([source]), **options)[0].tolist()
        assert [2, begun, *answer.tokens] == expected
        assert answer.stats.accepted > 0
        texts.append(answer.tokens)
    assert texts[0] != texts[1]


def test_a_language_that_is_none_of_the_model_is_refused():
    with pytest.raises(InvalidRequest, match="language='One': the tokenizer of m2m100"):
        multilingual().generate("One two.", SamplingParams(language="One"))
    text_only = LLM(starter.draft(), method="none")
    with pytest.raises(InvalidRequest, match=r"'fr': .* is not an encoder-decoder"):
        text_only.generate("One two.", SamplingParams(language="fr"))
