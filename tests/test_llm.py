"""Text in, text out: streams, seeds, and errors that say what to do."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import models
from transformers import PreTrainedTokenizerFast

import foreword
import starter
from asking import user
from foreword import (
    LLM,
    InvalidRequest,
    ModelError,
    SamplingParams,
    UnknownMethod,
    VocabularyMismatch,
)
from foreword.chats import conversation
from foreword.model import Mode
from foreword.sampling.noise import seed_of
from other_tokenizers import NEAR, TRANSLATED
from running import DTYPE

PROMPT = "Once upon a time there was a small fish. The small fish"
GREEDY = SamplingParams(temperature=0, max_tokens=24)


@cache
def llm(method: str = "lm", nodes: int = 4) -> LLM:
    return LLM(method=method, nodes=nodes, dtype=DTYPE)


# ---- what a user gets


def test_the_five_lines_of_python():
    answer = llm().generate("The capital of France is", GREEDY)[0]
    plain = llm("none").generate("The capital of France is", GREEDY)[0]
    assert (answer.text, answer.tokens) == (plain.text, plain.tokens)
    assert answer.finish_reason == plain.finish_reason
    assert answer.stats.accepted > 0 == plain.stats.accepted
    assert answer.stats.tokens == len(answer.tokens)
    assert answer.stats.tokens_per_pass > plain.stats.tokens_per_pass == 1
    ids = llm().tokenizer("The capital of France is")["input_ids"]
    assert answer.prompt_tokens == ids
    assert answer.logprobs is None


def test_the_width_may_measure_for_itself_and_change_no_token():
    params = SamplingParams(seed=4, max_tokens=24)
    measured = LLM(dtype=DTYPE).generate(PROMPT, params)[0]
    assert measured.tokens == llm("none").generate(PROMPT, params)[0].tokens


def test_answers_come_in_the_order_of_the_prompts():
    prompts = [PROMPT, "The capital of France is", [5, 6, 7]]
    together = llm().generate(prompts, GREEDY)
    alone = [llm().generate([prompt], GREEDY)[0] for prompt in prompts]
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert together[2].prompt_tokens == [5, 6, 7]
    assert llm().generate([], GREEDY) == []


def test_a_conversation_is_answered_in_the_models_template():
    messages = [user("What is the capital of France?")]
    answer = llm().chat(messages, GREEDY)
    rendered = llm().tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=False
    )
    assert llm().tokenizer.decode(answer.prompt_tokens) == rendered
    assert answer.text.strip()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("content", [1, None, {"text": "Hi"}])
def test_content_must_be_a_string(content):
    with pytest.raises(InvalidRequest, match="message 2: content must be a string"):
        llm().render([user("Hi"), user(content)])


SHOWN = "m['role'] == 'user' or m.role in ['assistant', 'tool']"
NAMING = "{% for m in messages %}{% if " + SHOWN + " %}<{{ m.role }}>{{ m.content }}"
NAMING += "{% endif %}{% endfor %}"


def test_role_that_the_template_leaves_out_is_refused(monkeypatch):
    monkeypatch.setattr(llm().tokenizer, "chat_template", NAMING)
    assert llm().render([{"role": "tool", "content": "Hi"}])
    with pytest.raises(InvalidRequest, match="role 'wizard'; it knows assistant"):
        llm().render([user("Hi"), {"role": "wizard", "content": "Hi"}])


def test_role_that_the_template_does_not_name_is_warned_of():
    with pytest.warns(UserWarning, match="does not name the role 'wizard'"):
        assert llm().render([{"role": "wizard", "content": "Hi"}])


@pytest.mark.parametrize("messages", ["Hi", [], ["Hi"], None, 5, user("Hi")])
def test_what_is_no_conversation_is_refused(messages):
    with pytest.raises(InvalidRequest, match="a chat is a list of messages"):
        conversation(messages)


def test_a_chat_needs_a_message():
    with pytest.raises(InvalidRequest, match="a chat is a list of messages"):
        llm().chat([], GREEDY)


def test_what_the_template_cannot_take_is_refused_with_its_reason(monkeypatch):
    template = "{{ raise_exception('roles must alternate') }}"
    monkeypatch.setattr(llm().tokenizer, "chat_template", template)
    with pytest.raises(InvalidRequest, match=r"refuses .*: roles must alternate"):
        llm().chat([user("Hi")], GREEDY)


# ---- seeds


def test_a_request_without_a_seed_gets_one_that_repeats_it():
    params = SamplingParams(max_tokens=16, ignore_eos=True)
    first, second = llm().generate([PROMPT, PROMPT], params)
    assert first.seed != second.seed
    assert first.tokens != second.tokens
    params = SamplingParams(max_tokens=16, ignore_eos=True, seed=second.seed)
    (again,) = llm("none").generate(PROMPT, params)
    assert (again.text, again.tokens) == (second.text, second.tokens)
    assert again.seed == second.seed


# ---- streams

BYTES = dict.fromkeys(range(100, 256), 12.0)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(seed=1, max_tokens=40, temperature=1.3),
        SamplingParams(seed=2, max_tokens=40, stop=("e s", "the ")),
        # Bytes of characters of several bytes, in an order that leaves some unfinished:
        # nothing may be shown broken.
        SamplingParams(seed=3, max_tokens=40, logit_bias=BYTES),
    ],
)
def test_the_pieces_of_a_stream_are_the_text(params):
    deltas = list(llm().stream(PROMPT, params))
    whole = llm("none").generate(PROMPT, params)[0]
    assert "".join(delta.text for delta in deltas) == whole.text
    assert [token for delta in deltas for token in delta.tokens] == whole.tokens
    assert all("".join(delta.pieces) == delta.text for delta in deltas)
    for delta in deltas:
        assert len(delta.pieces) == len(delta.tokens) == len(delta.origins)
    *before, last = [delta.finish_reason for delta in deltas]
    assert last == whole.finish_reason
    assert {*before} <= {None}


def test_two_streams_take_turns():
    prompts = (PROMPT, "The capital of France is")
    alone = [llm("none").generate(prompt, GREEDY)[0].text for prompt in prompts]
    streams = [llm().stream(prompt, GREEDY) for prompt in prompts]
    texts = ["", ""]
    open_ = [0, 1]
    while open_:
        for which in list(open_):
            delta = next(streams[which], None)
            if delta is None:
                open_.remove(which)
            else:
                texts[which] += delta.text
    assert texts == alone
    assert llm().engine.idle


def test_closing_a_stream_gives_the_request_up_and_no_other():
    prompts = (PROMPT, "The capital of France is")
    kept, closed = (llm().stream(prompt, GREEDY) for prompt in prompts)
    text = next(kept).text
    next(closed)
    closed.close()
    text += "".join(delta.text for delta in kept)
    assert text == llm("none").generate(PROMPT, GREEDY)[0].text
    assert llm().engine.idle
    assert llm().session._running == {}
    llm().stream(PROMPT, GREEDY).close()  # one that never began
    assert llm().engine.idle


# ---- threads


def test_threads_share_an_engine_and_each_gets_its_own_text():
    prompts = (PROMPT, "The capital of France is", "One day", "A fish")
    options = dict(max_tokens=24, ignore_eos=True)
    params = [SamplingParams(seed=seed, **options) for seed in range(4)]
    asked = [*zip(prompts, params, strict=True)]
    alone = [llm("none").generate(*request)[0].text for request in asked]

    def whole(request):
        return llm().generate(*request)[0].text

    def streamed(request):
        return "".join(delta.text for delta in llm().stream(*request))

    with ThreadPoolExecutor(4) as threads:
        for read in (whole, streamed):
            futures = [threads.submit(read, request) for request in asked]
            assert [future.result() for future in futures] == alone
    assert llm().engine.idle
    assert llm().session._running == {}


# ---- requests that fail beside others that do not


class Breaks:
    """A processor that raises once a text has a number of tokens."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, tokens, scores):
        if tokens.shape[1] >= self.length:
            raise RuntimeError("this processor is broken")
        return scores


def nothing(tokens, scores):
    return torch.full_like(scores, -torch.inf)


def silent(tokens, scores):
    """Forgets to return, from some length on."""
    return scores if tokens.shape[1] < 12 else None


@pytest.mark.sample(5)
@pytest.mark.parametrize("method", ["ngram", "none"])
@pytest.mark.parametrize("first", ["good", "bad"])
@pytest.mark.parametrize(
    ("processor", "error", "said"),
    [
        (Breaks(0), RuntimeError, "this processor is broken"),
        (Breaks(12), RuntimeError, "this processor is broken"),
        (nothing, InvalidRequest, "every token is forbidden"),
        (silent, InvalidRequest, "processor silent: it returned NoneType"),
    ],
)
def test_a_request_that_fails_ends_no_other(method, first, processor, error, said):
    good = llm(method).stream(PROMPT, GREEDY)
    options = dict(processors=(processor,), ignore_eos=True)
    params = SamplingParams(seed=1, max_tokens=24, **options)
    bad = llm(method).stream("The capital of France is", params)
    open_ = [good, bad] if first == "good" else [bad, good]
    text, raised = "", []
    while open_:
        for stream in list(open_):
            try:
                text += next(stream).text if stream is good else next(stream).text[:0]
            except StopIteration:
                open_.remove(stream)
            except (RuntimeError, InvalidRequest) as caught:
                raised.append((stream, caught))
                open_.remove(stream)
    ((stream, caught),) = raised
    assert stream is bad
    assert type(caught) is error
    assert said in str(caught)
    assert text == llm("none").generate(PROMPT, GREEDY)[0].text
    assert llm(method).engine.idle
    assert llm(method).session._running == {}


def test_one_failed_request_fails_the_call_that_asked_for_it():
    failing = SamplingParams(processors=(nothing,))
    with pytest.raises(InvalidRequest, match="every token is forbidden"):
        llm("ngram").generate([PROMPT, PROMPT], [GREEDY, failing])
    assert llm("ngram").engine.idle
    assert llm("ngram").session._running == {}


def test_error_of_the_target_reaches_the_reader(monkeypatch):
    def breaks(*_):
        raise MemoryError("the target is out of memory")

    stream = llm().stream(PROMPT, GREEDY)
    with monkeypatch.context() as patched:
        patched.setattr(llm().target, "read", breaks)
        with pytest.raises(MemoryError):
            next(stream)
    assert llm().engine.idle
    assert llm().session._running == {}


# ---- bad input


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "prompt",
    [None, 5, np.int64(5), 5.0, {"a": 1}, {5, 6}, b"ab", [5.0], [True], [None]],
    ids=repr,
)
def test_what_is_no_prompt_is_refused_with_what_is_one(prompt):
    said = r"a prompt is a text or a list of token ids \(ints\), not"
    for call in (
        llm().generate,
        llm().stream,
        lambda prompt: llm().generate([PROMPT, prompt]),
    ):
        with pytest.raises(InvalidRequest, match=said):
            call(prompt)
    assert llm().engine.idle


@pytest.mark.usefixtures("unchecked")
def test_numbers_of_numpy_are_token_ids_in_a_list():
    expected = llm().generate([5, 6, 7], GREEDY)[0]
    for prompt in (list(np.array([5, 6, 7])), (5, 6, 7), [list(np.array([5, 6, 7]))]):
        answer = llm().generate(prompt, GREEDY)[0]
        assert answer.tokens == expected.tokens
        assert {type(token) for token in answer.prompt_tokens} == {int}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "params", [5, "greedy", {"max_tokens": 4}, [{"max_tokens": 4}], 0]
)
def test_what_are_no_parameters_are_refused(params):
    with pytest.raises(
        InvalidRequest, match="params must be SamplingParams, or a list"
    ):
        llm().generate([PROMPT], params)
    with pytest.raises(InvalidRequest, match="params must be SamplingParams"):
        llm().stream(PROMPT, params)


def test_as_many_parameters_as_prompts():
    with pytest.raises(InvalidRequest, match="one set of parameters or 2, got 1"):
        llm().generate([PROMPT, PROMPT], [GREEDY])


@pytest.mark.parametrize(
    ("prompt", "params", "said"),
    [
        ("", {}, "prompt is empty"),
        ([], {}, "prompt is empty"),
        ([5, 8192], {}, "outside the vocabulary of 8192"),
        ([5, -1], {}, "outside the vocabulary of 8192"),
        ([5] * 1024, {}, "1024 tokens, the limit is 1023"),
        ([5] * 1000, {"max_tokens": 25}, "context of 1024. Use at most 24"),
        ([5], {"stop_token_ids": (9000,)}, "9000.*outside the vocabulary"),
        ([5], {"logit_bias": {9000: 1.0}}, "9000.*outside the vocabulary"),
        ([5], {"bad_word_ids": ((5, 9000),)}, "9000.*outside the vocabulary"),
        ([5], {"allowed_token_ids": (5, 9000)}, "9000.*outside the vocabulary"),
    ],
)
def test_request_that_cannot_be_served_is_refused_before_any_work(prompt, params, said):
    asked = SamplingParams(**({"max_tokens": 8} | params))
    with pytest.raises(InvalidRequest, match=said):
        llm().generate([[5, 6], prompt], asked)
    with pytest.raises(InvalidRequest, match=said):
        llm().stream(prompt, asked)
    assert llm().engine.idle


def test_the_whole_context_can_be_used():
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    (answer,) = llm().generate([[5] * 1000], params)
    assert len(answer.tokens) == 24


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"method": "ngrams"}, UnknownMethod, "Did you mean 'ngram'"),
        ({"rule": "macth"}, UnknownMethod, "Did you mean 'match'"),
        ({"nodes": 65}, InvalidRequest, r"a whole number in \[0, 64\], got 65"),
        ({"nodes": -1}, InvalidRequest, r"a whole number in \[0, 64\], got -1"),
        (
            {"budget": "confidense", "nodes": None},
            UnknownMethod,
            "Did you mean 'confidence'",
        ),
        ({"budget": "confidence", "nodes": 4}, InvalidRequest, "Give one"),
        ({"slots": 0}, InvalidRequest, "slots must be a whole number >= 1, got 0"),
        ({"chunk": 0}, InvalidRequest, "chunk must be a whole number >= 1, got 0"),
        ({"dtype": "int3"}, ModelError, "float32, bfloat16, float16"),
        ({"method": "ngram", "draft": starter.draft()}, InvalidRequest, "draft=None"),
        ({"target": starter.target(), "method": "lm"}, InvalidRequest, "a draft model"),
        ({"target": "no/such-folder/at-all"}, ModelError, "no/such-folder/at-all"),
        ({"draft": "no/such-folder/at-all"}, ModelError, "no/such-folder/at-all"),
    ],
)
def test_a_wrong_way_to_begin_says_what_to_do(options, error, said):
    with pytest.raises(error, match=said):
        LLM(**({"nodes": 2} | options))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"method": "lm"}, InvalidRequest),
        ({"draft": "no/such-folder/at-all"}, ModelError),
        ({"slots": 0}, InvalidRequest),
    ],
)
def test_wrong_options_are_refused_before_the_target_loads(options, error, monkeypatch):
    monkeypatch.setattr(
        "foreword.model.loading.given.Model.load",
        lambda *_, **__: pytest.fail("the target was loaded"),
    )
    with pytest.raises(error):
        LLM(starter.target(), **options)


def test_a_folder_without_a_model_is_no_model(tmp_path: Path):
    with pytest.raises(ModelError, match="cannot load a model"):
        LLM(tmp_path)


def test_models_of_different_tokenizers_are_refused(tmp_path: Path):
    vocabulary = dict(llm().tokenizer.get_vocab())
    first, second = (
        next(token for token, number in vocabulary.items() if number == wanted)
        for wanted in (500, 501)
    )
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    for file in starter.draft().iterdir():
        if file.is_file() and not file.name.startswith("tokenizer"):
            (tmp_path / file.name).symlink_to(file)
    raw = RawTokenizer(models.WordLevel(vocabulary, unk_token=first))
    PreTrainedTokenizerFast(tokenizer_object=raw).save_pretrained(tmp_path)
    with pytest.raises(VocabularyMismatch, match=r"2 tokens differ.*needs no model"):
        LLM(draft=tmp_path, method="lm", nodes=2)


def test_a_guarantee_may_be_named_instead_of_a_rule():
    named = LLM(rule="same-distribution", dtype=DTYPE, nodes=2)
    assert named.engine.rule.name == "match"
    with pytest.raises(UnknownMethod, match="Did you mean 'same-text'"):
        LLM(rule="same-test")


def test_draft_model_of_another_tokenizer_is_translated(tmp_path: Path):
    with pytest.warns(UserWarning, match=TRANSLATED) as said:
        mixed = LLM(draft=NEAR.save(tmp_path), dtype=DTYPE, nodes=3)
    assert "cannot" not in str(said[0].message)
    params = SamplingParams(temperature=0.7, seed=5, max_tokens=32)
    answer = mixed.generate(PROMPT, params)[0]
    assert answer.tokens == llm("none").generate(PROMPT, params)[0].tokens
    assert answer.stats.accepted > 0


def test_the_family_is_driven_the_best_way():
    assert llm().target.mode is Mode.TREE


def test_default_dtype_of_the_process_changes_no_text():
    """transformers changes it while a thread loads; a buffer for C must not follow."""
    penalised = dict(presence_penalty=0.5, repetition_penalty=1.2, top_p=0.9)
    choices = (dict(method="eagle"), dict(rule="rejection"))
    choices += (dict(rule="rejection", method="none"), {})
    penalised |= dict(seed=2, max_tokens=8)
    every = [SamplingParams(**choice, **penalised) for choice in choices]
    want = [llm().generate(PROMPT, params)[0].tokens for params in every]
    torch.set_default_dtype(torch.float64)
    try:
        found = [llm().generate(PROMPT, params)[0].tokens for params in every]
    finally:
        torch.set_default_dtype(torch.float32)
    assert found == want


# ---- a request that chooses for itself


CHOICES = (
    SamplingParams(method="ngram", nodes=3),
    SamplingParams(method="suffix"),
    SamplingParams(method="eagle", nodes=6),
    SamplingParams(method="none"),
    SamplingParams(nodes=1),
    SamplingParams(budget="heuristic"),
    SamplingParams(method="cascade(suffix, lm)", nodes=4),
)


@cache
def chooser() -> LLM:
    return LLM(dtype=DTYPE, nodes=4)


def wish(choice: SamplingParams, **more: object) -> SamplingParams:
    names = ("method", "rule", "budget", "nodes")
    return SamplingParams(
        **{name: getattr(choice, name) for name in names},
        **(dict(temperature=0.7, seed=9, max_tokens=40, ignore_eos=True) | more),
    )


def test_requests_choose_method_width_and_number_and_keep_their_text():
    want = llm("none").generate(PROMPT, wish(SamplingParams()))[0]
    wishes = [wish(choice) for choice in CHOICES]
    got = chooser().generate([PROMPT] * len(CHOICES), wishes)
    assert [one.tokens for one in got] == [want.tokens] * len(CHOICES)
    assert [one.method for one in got] == [choice.method or "lm" for choice in CHOICES]
    assert [one.undrafted for one in got] == [None] * len(CHOICES)
    for choice, one in zip(CHOICES, got, strict=True):
        assert (one.stats.drafted > 0) == (choice.method != "none")
    assert sum(one.stats.accepted > 0 for one in got) >= 5
    assert max(got[4].stats.drafted_at) <= got[4].stats.rounds
    assert len(got[4].stats.drafted_at) == 1, "nodes=1 drafts one token at a time"


def test_request_with_its_own_rule_has_its_text():
    usual, own = wish(SamplingParams()), wish(SamplingParams(rule="block"))
    (ruled,) = LLM(rule="block", dtype=DTYPE, nodes=4).generate(PROMPT, usual)
    (plain,) = llm("none").generate(PROMPT, usual)
    both = chooser().generate([PROMPT, PROMPT], [own, usual])
    assert [one.tokens for one in both] == [ruled.tokens, plain.tokens]
    assert both[0].stats.accepted > 0 < both[1].stats.accepted


@pytest.mark.parametrize(
    ("params", "error", "said"),
    [
        (SamplingParams(method="ngrams"), UnknownMethod, "Did you mean 'ngram'"),
        (SamplingParams(rule="macth"), UnknownMethod, "Did you mean 'match'"),
        (
            SamplingParams(budget="confidense"),
            UnknownMethod,
            "Did you mean 'confidence'",
        ),
        (SamplingParams(budget="confidence", nodes=4), InvalidRequest, "Give one"),
        (SamplingParams(method="retrieval"), InvalidRequest, "'retrieval': it needs"),
    ],
)
def test_a_wrong_choice_is_refused_before_any_work(params, error, said):
    with pytest.raises(error, match=said):
        chooser().generate([PROMPT, PROMPT], [GREEDY, params])
    assert chooser().engine.idle
    assert chooser().session._running == {}


def test_sources_are_given_by_the_name_of_the_method():
    sources = {"ngram": None, "lm": starter.draft()}
    served = LLM(starter.target(), draft=sources, dtype=DTYPE, nodes=4)
    assert served.method == "ngram"
    wishes = [wish(SamplingParams()), wish(SamplingParams(method="lm"))]
    want, drafted = served.generate([PROMPT, PROMPT], wishes)
    assert want.tokens == drafted.tokens
    assert drafted.stats.accepted > 0
    with pytest.raises(UnknownMethod, match="Did you mean 'ngram'"):
        LLM(starter.target(), draft={"ngrams": None})
    with pytest.raises(InvalidRequest, match="method 'lm': it needs"):
        LLM(starter.target(), dtype=DTYPE).generate(PROMPT, SamplingParams(method="lm"))


# ---- several answers, and the end of an LLM


def test_n_answers_have_the_seeds_that_follow():
    params = SamplingParams(temperature=0.9, seed=2**63 - 2, n=3, max_tokens=16)
    several = llm().generate([PROMPT, "One day"], params)
    seeds = [seed_of(2**63 - 2, number) for number in range(3)]
    assert [one.seed for one in several] == seeds * 2
    assert len({*seeds}) == 3
    for prompt, answers in ((PROMPT, several[:3]), ("One day", several[3:])):
        for one in answers:
            own = SamplingParams(temperature=0.9, seed=one.seed, max_tokens=16)
            assert one.tokens == llm().generate(prompt, own)[0].tokens
    free = llm().generate(PROMPT, SamplingParams(n=2, max_tokens=4))
    assert free[0].seed != free[1].seed
    for call in (
        lambda: llm().stream(PROMPT, params),
        lambda: llm().chat([user("a")], params),
    ):
        with pytest.raises(InvalidRequest, match="n=3"):
            call()
    assert llm().engine.idle


def test_closed_llm_is_reported_to_readers():
    with LLM(method="ngram", dtype=DTYPE) as closing:
        assert repr(closing).startswith("LLM(")
        backend = closing.target.capability.backend
        for word in ("ngram", "match", DTYPE, "cpu", backend):
            assert word in repr(closing)
        stream = closing.stream(PROMPT, GREEDY)
        next(stream)
    assert repr(closing) == "<LLM, closed>"
    with pytest.raises(InvalidRequest, match="the LLM was closed"):
        list(stream)
    for use in (
        closing.generate,
        closing.stream,
        lambda text: closing.render([user(text)]),
    ):
        with pytest.raises(InvalidRequest, match="cannot use this LLM: it was closed"):
            use(PROMPT)
    closing.close()


def test_an_interrupted_reader_takes_no_text_of_others():
    """Ctrl-C comes while one stream runs the round of both."""

    def interrupt(tokens, scores):
        if tokens.shape[1] == 20 and armed:
            armed.clear()
            raise KeyboardInterrupt
        return scores

    armed = [True]
    kept = llm().stream(PROMPT, GREEDY)
    text = next(kept).text
    params = SamplingParams(processors=(interrupt,), seed=1, ignore_eos=True)
    stopped = llm().stream("The capital of France is", params)
    with pytest.raises(KeyboardInterrupt):
        list(stopped)
    text += "".join(delta.text for delta in kept)
    assert text == llm("none").generate(PROMPT, GREEDY)[0].text
    assert llm().engine.idle
    assert llm().session._running == {}


def test_parameters_that_change_after_their_check_change_no_request():
    def text(meddles):
        bias = {400: 3.0}
        options = dict(ignore_eos=True, logit_bias=bias)
        params = SamplingParams(temperature=0, max_tokens=24, **options)
        stream, said = llm("ngram").stream(PROMPT, params), ""
        for delta in stream:
            said += delta.text
            if meddles:
                bias[401] = params.logit_bias[401] = 100.0
        return said

    assert text(meddles=True) == text(meddles=False)


def test_request_that_names_default_method_shares_what_was_learned():
    one = llm()
    for choice, is_default in (
        (dict(method=one.method), True),
        (dict(method="ngram"), False),
        (dict(method=one.method, nodes=2), False),
    ):
        found = one.session.speculator(SamplingParams(**choice))
        assert (found is one.engine.default) == is_default


def test_stop_that_ended_an_answer_is_named_where_it_was_found():
    prompt, params = "one two three one two three", dict(temperature=0, max_tokens=24)
    (whole,) = llm().generate(prompt, SamplingParams(**params, ignore_eos=True))
    word = whole.text.split()[2]
    params |= dict(ignore_eos=True)
    stops = ("never there", word)
    (cut,) = llm().generate(prompt, SamplingParams(**params, stop=stops))
    *_, last = llm().stream(prompt, SamplingParams(**params, stop=stops))
    assert cut.stop_reason == last.stop_reason == word
    token = whole.tokens[3]
    (ended,) = llm().generate(prompt, SamplingParams(**params, stop_token_ids=(token,)))
    assert (ended.finish_reason, ended.stop_reason) == ("stop", token)
    assert whole.stop_reason is None


def test_stop_string_may_be_the_end_of_the_text():
    prompt, params = "one two three one two three", dict(temperature=0, max_tokens=24)
    (whole,) = llm().generate(prompt, SamplingParams(**params, ignore_eos=True))
    word = whole.text.split()[2]
    params |= dict(ignore_eos=True, stop=(word,), include_stop_str_in_output=True)
    (cut,) = llm().generate(prompt, SamplingParams(**params))
    streamed = llm().stream(prompt, SamplingParams(**params))
    assert cut.text == whole.text[: whole.text.index(word) + len(word)]
    assert "".join(delta.text for delta in streamed) == cut.text


def test_answer_has_allowed_token_ids_alone_under_every_drafter():
    prompt = "one two three one two three one two three"
    allowed = (*llm().tokenizer.encode(prompt), *range(40, 60))
    texts = []
    for method in ("none", "lm"):
        options = dict(method=method, nodes=0 if method == "none" else 4)
        options |= dict(temperature=0.7, max_tokens=32, seed=3)
        params = SamplingParams(**options, allowed_token_ids=allowed)
        (found,) = llm().generate(prompt, params)
        texts.append(found.tokens)
        assert set(found.tokens) <= set(allowed)
        assert (found.stats.accepted > 0) == (method == "lm")
    assert texts[0] == texts[1]


@pytest.mark.usefixtures("unchecked")
def test_foreword_generate_with_a_text_names_what_generates():
    with pytest.raises(InvalidRequest, match=r"Use foreword\.LLM\(\)\.generate"):
        foreword.generate("Hello")


def test_reading_of_a_prompt_is_told_until_the_first_token():
    with LLM(chunk=16) as llm:
        prompt = llm.tokenizer("The river runs through the town. " * 12)["input_ids"]
        params = SamplingParams(max_tokens=4, ignore_eos=True)
        (sequence,) = llm.session.prepare(prompt, params)
        told: list[tuple[int, int]] = []
        stream = llm.session.stream(sequence, lambda *read: told.append(read))
        assert sum(len(delta.tokens) for delta in stream) == 4
    steps = range(16, len(prompt), 16)
    assert len(steps) > 3
    assert told == [(read, len(prompt)) for read in steps]
