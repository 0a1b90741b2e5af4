"""Encoder-decoders from folders: what their settings force, and what is refused by
name.
"""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers as hf

import starter
import tiny_seq2seq
from foreword import LLM, InvalidRequest, ModelError, SamplingParams
from foreword.draft.lm import LanguageModelDrafter
from foreword.errors import ContextExceeded
from foreword.model import Model
from foreword.model.cost import measured
from foreword.model.loading.config import read_config
from foreword.native.forward import reason as library_reason

GREEDY = SamplingParams(temperature=0, max_tokens=20)


@cache
def llm() -> LLM:
    return LLM(
        Model(tiny_seq2seq.build("marian"), "marian"),
        tokenizer=tiny_seq2seq.tokenizer("marian"),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_seq2seq.saved("marian", tmp_path)


def edited(folder: Path, **settings) -> Path:
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return folder


def test_a_folder_is_a_target_whose_prompt_is_the_source(folder):
    one = LLM(folder, dtype="float32")
    assert (one.method, one.target.capability.backend) == ("ngram", "pool")
    answer = one.generate("A text.", GREEDY)[0]
    source = one.tokenizer("A text.")["input_ids"]
    model = hf.AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)
    expected = model.generate(
        torch.tensor([source]), max_new_tokens=20, num_beams=1, do_sample=False
    )[0].tolist()
    assert [*one.target.seq2seq.start, *answer.tokens] == expected
    assert answer.prompt_tokens == source
    assert answer.text == one.tokenizer.decode(answer.tokens, skip_special_tokens=True)
    assert (
        LLM(folder, draft=folder, dtype="float32").generate("A text.", GREEDY)[0].tokens
        == answer.tokens
    )


@pytest.mark.parametrize(
    ("name", "backend"), [("t5", "native"), ("flan-t5", "native"), ("bart", "pool")]
)
def test_folders_run_in_bfloat16(tmp_path, name, backend):
    one = LLM(tiny_seq2seq.saved(name, tmp_path), dtype="bfloat16")
    asked = SamplingParams(max_tokens=16, seed=1)
    assert one.target.capability.backend == (
        backend if library_reason() is None else "pool"
    )
    plain, drafted = (
        one.generate("one one one", SamplingParams(max_tokens=16, seed=1, method=m))
        for m in ("none", None)
    )
    assert (
        plain[0].tokens
        == drafted[0].tokens
        == one.generate("one one one", asked)[0].tokens
    )


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
    sizes = dict(
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
    )
    config = hf.Speech2TextConfig(
        **sizes, vocab_size=320, encoder_ffn_dim=32, decoder_ffn_dim=32
    )
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
    assert (
        llm()
        .generate([50] * context, SamplingParams(max_tokens=2, ignore_eos=True))[0]
        .finish_reason
        == "length"
    )


def test_an_encoder_may_have_a_longer_context():
    led = LLM(
        Model(tiny_seq2seq.build("led"), "led"), tokenizer=tiny_seq2seq.tokenizer("led")
    )
    assert led.target.context == 96
    assert len(led.generate([50] * 128, GREEDY)[0].prompt_tokens) == 128
    with pytest.raises(ContextExceeded, match="has 129 tokens, the limit is 128"):
        led.generate([50] * 129, GREEDY)


def test_a_cost_is_measured_within_a_short_context():
    assert measured(llm().target).seconds[1] > 0


@cache
def multilingual() -> LLM:
    """A model whose settings name no language, and a tokenizer with two."""
    model = tiny_seq2seq.build("m2m100")
    model.generation_config.update(forced_bos_token_id=None)
    tokenizer = tiny_seq2seq.tokenizer("m2m100")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<300>", "<301>"]})
    vocab = tokenizer.get_vocab()
    assert {"<300>", "<301>"} <= set(tokenizer.get_added_vocab())
    assert vocab["<300>"] != vocab["<301>"]
    return LLM(
        Model(model, "m2m100"),
        tokenizer=tokenizer,
        draft=Model(tiny_seq2seq.build("m2m100")),
        nodes=4,
    )


def test_a_request_chooses_the_language_of_its_answer():
    model, one = tiny_seq2seq.build("m2m100"), multilingual()
    source, texts = one.tokenizer("One two. One two.")["input_ids"], []
    requests = [
        SamplingParams(temperature=0, max_tokens=20, language=language)
        for language in ("<300>", "<301>")
    ]
    for language, answer in zip(
        ("<300>", "<301>"), one.generate([source] * 2, requests), strict=True
    ):
        begun = one.tokenizer.convert_tokens_to_ids(language)
        options = dict(
            forced_bos_token_id=begun, max_new_tokens=21, num_beams=1, do_sample=False
        )
        expected = model.generate(torch.tensor([source]), **options)[0].tolist()
        assert [2, begun, *answer.tokens] == expected
        assert answer.stats.accepted > 0
        texts.append(answer.tokens)
    assert texts[0] != texts[1]


def test_a_language_that_is_none_of_the_model_is_refused():
    with pytest.raises(InvalidRequest, match="language='One': the tokenizer of m2m100"):
        multilingual().generate("One two.", SamplingParams(language="One"))
    with pytest.raises(InvalidRequest, match=r"'fr': .* is not an encoder-decoder"):
        LLM(starter.draft(), method="none").generate(
            "One two.", SamplingParams(language="fr")
        )
