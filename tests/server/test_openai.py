"""OpenAI's client against the server: chat, streams, completions, seeds, errors."""

import asyncio
import copy

import openai
import pytest

from asking import chat, complete, speculation
from foreword import SamplingParams
from foreword.api.requests import Requests
from foreword_server.dialects.completions import CompletionBody, prompts_of
from owned import CHAT as TALE

QUESTION = [{"role": "user", "content": "Define the word gasolene."}]


def test_chat_gives_the_text_of_the_library(client, llm):
    for temperature in (0.0, 0.8):
        params = SamplingParams(temperature=temperature, seed=5, max_tokens=48)
        expected = llm.generate([llm.render(TALE)], params)[0]
        got = chat(
            client,
            TALE,
            temperature=temperature,
            seed=5,
            max_tokens=48,
            extra_body={"speculative": {"nodes": 4}},
        )
        assert got.choices[0].message.content == expected.text
        assert got.usage.completion_tokens == len(expected.tokens)
        assert got.usage.prompt_tokens == len(expected.prompt_tokens)
    counts = speculation(got)
    assert counts["num_accepted_draft_tokens"] > 0
    assert got.model_extra["timings"]["draft_n"] == counts["num_draft_tokens"]


def test_an_answer_names_the_methods_that_wrote_it(client, llm):
    params = SamplingParams(temperature=0, max_tokens=32)
    (expected,) = llm.generate([llm.render(TALE)], params)
    got = chat(
        client,
        TALE,
        temperature=0,
        max_tokens=32,
        extra_body={"speculative": {"method": "auto"}},
    )
    assert got.choices[0].message.content == expected.text
    counts = speculation(got)
    written = counts["tokens_by_method"]
    assert sum(written.values()) >= got.usage.completion_tokens
    assert set(written) <= {"lm", "cascade(suffix, lm)", "ngram", "suffix", "none"}
    assert counts["num_accepted_draft_tokens"] > 0


def test_a_stream_is_the_whole_answer_in_pieces(client):
    whole = chat(client, TALE, seed=3, max_tokens=40)
    chunks = list(
        chat(
            client,
            TALE,
            seed=3,
            max_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len(chunks) > 4


def test_n_answers_are_those_of_their_seeds(client):
    three = chat(client, TALE, seed=10, n=3, max_tokens=24)
    seeds = [choice.model_extra["seed"] for choice in three.choices]
    assert seeds[0] == 10
    assert len(set(seeds)) == 3
    alone = [chat(client, TALE, seed=seed, max_tokens=24) for seed in seeds]
    texts = [choice.message.content for choice in three.choices]
    assert texts == [one.choices[0].message.content for one in alone]
    assert len(set(texts)) > 1


def test_every_method_and_batch_give_the_same_text(server):
    """The seed decides the text: not method, width, suffix or batch."""
    client = openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0
    )
    ways: list[dict[str, object]] = [
        {"model": "foreword-family:none"},
        {"model": "foreword-family:suffix"},
        {"extra_body": {"speculative": {"method": "lm", "nodes": 4}}},
        {"extra_body": {"speculative": {"method": "ngram", "nodes": "auto"}}},
        {"model": "default"},
        {"extra_body": {"speculative": {"budget": "confidence"}}},
        {"extra_body": {"speculative.n_max": 3, "speculative.n_min": 1}},
        {"extra_body": {"speculative.n_max": 0}},
    ]

    async def ask() -> list[openai.types.chat.ChatCompletion]:
        async with client:
            calls = [chat(client, TALE, seed=7, max_tokens=40, **way) for way in ways]
            return list(await asyncio.gather(*calls))

    answers = asyncio.run(ask())
    assert len({answer.choices[0].message.content for answer in answers}) == 1
    drafted = [speculation(answer) for answer in answers]
    assert drafted[0]["num_draft_tokens"] == 0
    assert drafted[0]["off"]["reason"] == "method"
    assert drafted[2]["num_accepted_draft_tokens"] > 0
    assert drafted[-2]["num_accepted_draft_tokens"] > 0
    assert drafted[-1]["off"]["reason"] == "method"
    assert [counts["method"] for counts in drafted[:3]] == ["none", "suffix", "lm"]


def test_logprobs_are_those_of_the_library(client, llm):
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=3)
    (expected,) = llm.generate([llm.render(QUESTION)], params)
    got = chat(
        client, QUESTION, temperature=0, max_tokens=8, logprobs=True, top_logprobs=3
    )
    entries = got.choices[0].logprobs.content
    want = [one.logprob for one in expected.logprobs]
    assert [entry.logprob for entry in entries] == want
    assert all(len(entry.top_logprobs) == 3 for entry in entries)
    assert bytes(entries[0].bytes).decode() == entries[0].token


def test_streamed_logprobs_cover_every_token(client):
    chunks = chat(
        client,
        TALE,
        seed=3,
        max_tokens=20,
        logprobs=True,
        top_logprobs=1,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(chunks)
    logprobs = [choice.logprobs for chunk in chunks for choice in chunk.choices]
    count = sum(len(one.content) for one in logprobs if one)
    assert count == chunks[-1].usage.completion_tokens


def test_completions_take_texts_and_ids(client, llm):
    text = "The capital of France is"
    ids = llm.tokenizer(text)["input_ids"]
    answers = [
        complete(client, prompt, seed=2, max_tokens=8)
        for prompt in (text, ids, [text, text], [ids])
    ]
    texts = [choice.text for answer in answers for choice in answer.choices]
    assert len(texts) == 5
    want = llm.generate(text, SamplingParams(seed=2, max_tokens=8))[0].text
    assert set(texts) == {want}
    assert answers[2].usage.prompt_tokens == 2 * len(ids)


def test_echoed_logprobs_score_the_prompt(client, llm):
    """What lm-eval asks for: the log-likelihood of given tokens."""
    ids = llm.tokenizer("The miller moved his grain upstairs.")["input_ids"]
    got = complete(client, [ids], max_tokens=1, echo=True, logprobs=1, temperature=0)
    logprobs = got.choices[0].logprobs
    expected = llm.score(ids, 1)
    assert logprobs.token_logprobs[0] is None
    scores = [one.logprob for one in expected[1:]]
    assert logprobs.token_logprobs[1 : len(ids)] == scores
    assert len(logprobs.tokens) == len(ids) + 1
    only = complete(client, ids, max_tokens=0, echo=True, logprobs=1)
    assert only.choices[0].logprobs.token_logprobs == [None, *scores]
    assert only.usage.completion_tokens == 0


def test_stop_strings_end_the_text(client):
    whole = chat(client, TALE, temperature=0, max_tokens=40)
    text = whole.choices[0].message.content
    word = text.split()[3]
    cut = chat(client, TALE, temperature=0, max_tokens=40, stop=[word])
    assert cut.choices[0].message.content == text[: text.index(word)]
    assert cut.choices[0].finish_reason == "stop"
    kept = chat(
        client,
        TALE,
        temperature=0,
        max_tokens=40,
        stop=[word],
        extra_body={"include_stop_str_in_output": True},
    )
    assert kept.choices[0].message.content == text[: text.index(word) + len(word)]


def test_only_allowed_tokens_are_produced(client, llm):
    (allowed,) = llm.tokenizer.encode("a", add_special_tokens=False)
    answer = complete(
        client, "The", max_tokens=4, extra_body={"allowed_token_ids": [allowed]}
    )
    assert answer.choices[0].text == llm.tokenizer.decode([allowed] * 4)


def test_a_prediction_is_a_draft(client, llm):
    plain = chat(
        client, TALE, model="foreword-family:none", temperature=0, max_tokens=60
    )
    text = plain.choices[0].message.content
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens is None
    predicted = chat(
        client,
        TALE,
        temperature=0,
        max_tokens=60,
        prediction={"type": "content", "content": text},
    )
    assert predicted.choices[0].message.content == text
    given = len(llm.tokenizer.encode(text, add_special_tokens=False))
    details = predicted.usage.completion_tokens_details
    assert details.accepted_prediction_tokens == given
    assert details.rejected_prediction_tokens == 0
    drafted = speculation(predicted)
    assert drafted["num_accepted_draft_tokens"] > 0
    wrong = chat(
        client,
        TALE,
        temperature=0,
        max_tokens=60,
        prediction={"type": "content", "content": "zzz qqq"},
    )
    details = wrong.usage.completion_tokens_details
    assert details.accepted_prediction_tokens < details.rejected_prediction_tokens


def test_a_short_right_prediction_is_drafted(client, llm):
    ask = dict(messages=TALE, temperature=0)
    text = chat(client, **ask, max_tokens=7).choices[0].message.content
    prediction = {"type": "content", "content": text}
    predicted = chat(client, **ask, max_tokens=60, prediction=prediction)
    assert speculation(predicted)["num_accepted_draft_tokens"] > 3


def test_the_spellings_of_llama_cpp_are_kept(client, llm):
    params = SamplingParams(seed=6, repetition_penalty=1.4, max_tokens=900)
    expected = llm.generate([llm.render(QUESTION)], params)[0]
    got = chat(
        client, QUESTION, seed=6, max_tokens=-1, extra_body={"repeat_penalty": 1.4}
    )
    assert expected.finish_reason == got.choices[0].finish_reason == "stop"
    assert got.choices[0].message.content == expected.text


def test_logit_bias_forbids_a_token(client, llm):
    params = SamplingParams(temperature=0, max_tokens=1)
    (first,) = llm.chat(QUESTION, params).tokens
    got = chat(
        client, QUESTION, temperature=0, max_tokens=4, logit_bias={str(first): -100}
    )
    assert not got.choices[0].message.content.startswith(llm.tokenizer.decode([first]))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"extra_body": {"speculative": {"method": "magic"}}}, "magic"),
        ({"extra_body": {"speculative": {"width": 3}}}, "width"),
        ({"extra_body": {"speculative.n_max": "many"}}, "nodes"),
        ({"extra_body": {"use_beam_search": True}}, "use_beam_search"),
        ({"extra_body": {"messages": []}}, "messages"),
        ({"extra_body": {"messages": [{"role": "user", "content": 5}]}}, "content"),
        ({"top_logprobs": 3}, "logprobs"),
    ],
)
def test_a_bad_value_is_refused_by_name(client, fields, named):
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, QUESTION, **fields)
    assert named in str(refused.value)
    assert refused.value.body["type"] == "invalid_request_error"


def test_unknown_fields_are_ignored_and_unknown_models_are_not(client):
    chat(
        client,
        QUESTION,
        max_tokens=2,
        metadata={"a": "b"},
        user="x",
        store=False,
        extra_body={"prompt_cache_key": "k", "next_years_field": [1]},
    )
    for name in ("llama", "gpt-5"):
        with pytest.raises(openai.NotFoundError, match=r"'foreword-family'.*any-model"):
            chat(client, QUESTION, model=name)
    with pytest.raises(openai.NotFoundError, match="this server writes text"):
        client.embeddings.create(model="foreword-family", input="a river")
    with pytest.raises(openai.NotFoundError, match="ngrm"):
        chat(client, QUESTION, model="foreword-family:ngrm")


def test_models_are_listed(client):
    listed = [model.id for model in client.models.list()]
    assert listed == ["foreword-family"]
    ngram = client.models.retrieve("foreword-family:ngram")
    assert ngram.model_extra["max_model_len"] == 1024


def test_answers_and_prompts_end_at_the_context(client, llm):
    ids = (llm.tokenizer("The river rose in the night. ")["input_ids"] * 200)[:1000]
    got = complete(client, ids, max_tokens=32_000, extra_body={"ignore_eos": True})
    assert got.choices[0].finish_reason == "length"
    assert got.usage.total_tokens == 1024
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, ids + ids)
    assert refused.value.body["code"] == "context_length_exceeded"


def test_fill_in_the_middle_needs_tokens(client, llm):
    with pytest.raises(openai.BadRequestError, match="suffix"):
        complete(client, "def f(", suffix="return x")
    tokenizer = copy.deepcopy(llm.tokenizer)
    tokenizer.add_special_tokens(
        {"extra_special_tokens": ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]}
    )
    body = CompletionBody(prompt="def f(", suffix="return x")
    prompt = tokenizer.decode(prompts_of(body, Requests(llm.target, tokenizer))[0])
    assert prompt == "<fim_prefix>def f(<fim_suffix>return x<fim_middle>"
