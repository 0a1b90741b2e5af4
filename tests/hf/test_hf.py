"""The drop-in gives what transformers gives: same tokens, same shapes, same rules of
stopping, and the model back.
"""

import threading
from functools import partial

import pytest
import torch
import transformers as hf

import foreword
import starter
import tiny_models
from foreword import InvalidRequest, UnknownMethod
from foreword.budget import BUDGETS, DraftBudget
from foreword.hf.adapters import split
from foreword.hf.borrowed import ModelRecord, borrowed_model
from foreword.model import Mode
from generating import OURS, OUTPUT, Alternate, CollectedStream, Sum, few, greedy, ids

DRAFTERS = ["nothing", "itself", "text"]


@pytest.fixture(scope="module")
def model():
    return tiny_models.build("llama")


@pytest.fixture
def enabled():
    with foreword.enable():
        yield


def how(drafter, model):
    """Arguments that let a drafter propose four tokens a round, or none."""
    if drafter == "nothing":
        return OURS | dict(method="none")
    return OURS | dict(nodes=4, drafter=model if drafter == "itself" else None)


class OfRow(hf.LogitsProcessor):
    """Allows each row of the batch its own half of the vocabulary."""

    def __call__(self, input_ids, scores):
        half = torch.arange(scores.shape[-1]) >= scores.shape[-1] // 2
        row = torch.arange(len(scores))[:, None] % 2 == 1
        return scores.masked_fill(half != row, -torch.inf)


# ---- the same tokens


@pytest.mark.sample(3)
@pytest.mark.parametrize("drafter", ["itself", "text"])
@pytest.mark.parametrize(
    "name", ["gpt2", "mistral", "qwen3", "gemma2", "opt", "mixtral"]
)
def test_greedy_text_is_that_of_transformers(name, drafter):
    """Two of four are drafted with each; all are in test_architectures.py."""
    model, inputs = tiny_models.build(name), ids(13)
    want = model.generate(**inputs, **greedy(24))
    got = model.generate(**inputs, **greedy(24), **OUTPUT, **how(drafter, model))
    assert got.sequences.dtype == want.dtype
    assert got.sequences.tolist() == want.tolist()
    assert drafter == "text" or got.stats[0].accepted > 0


@pytest.mark.parametrize("name", ["stablelm", "bloom", "qwen3-next", "mamba"])
def test_models_without_our_attention_are_served(name):
    model, inputs = tiny_models.build(name), ids(9)
    want = model.generate(**inputs, **greedy(12))
    with pytest.warns(UserWarning, match="mode '(cache|plain)'"):
        got = model.generate(**inputs, **greedy(12), **how("text", model))
    assert got.tolist() == want.tolist()
    again = model.generate(**inputs, **greedy(12), **how("text", model))
    assert again.tolist() == want.tolist(), "warned once, served twice"


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_rows_of_different_lengths_with_end_of_text_and_padding(model, drafter):
    inputs = ids(3, 17, 9, 1, 12, pad=7)
    inputs["input_ids"][1, 4] = 7  # the padding token may also be part of a prompt
    options = dict(**greedy(20), eos_token_id=list(range(0, 320, 9)), pad_token_id=7)
    want = model.generate(**inputs, **options)
    lengths = {(row[17:] != 7).sum().item() for row in want}
    assert len(lengths) > 1, "all rows are equally long: the test says nothing"
    got = model.generate(**inputs, **options, **how(drafter, model))
    assert got.tolist() == want.tolist()


EVEN = list(range(0, 320, 2))
ENDS = dict(eos_token_id=11, pad_token_id=0)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "options",
    [
        dict(repetition_penalty=1.7),
        dict(no_repeat_ngram_size=2),
        dict(bad_words_ids=[[5], [7, 9]] + [[token] for token in range(100, 200)]),
        dict(min_new_tokens=9, eos_token_id=list(range(0, 320, 3)), pad_token_id=0),
        dict(min_length=20, eos_token_id=list(range(0, 320, 3)), pad_token_id=0),
        dict(suppress_tokens=EVEN, begin_suppress_tokens=[1, 3, 5, 7]),
        dict(sequence_bias=[[[4], 9.0], [[4, 8], -50.0]]),
        dict(exponential_decay_length_penalty=(3, 1.2), **ENDS),
        dict(forced_eos_token_id=11, **ENDS),
        dict(encoder_repetition_penalty=1.5),
        dict(logits_processor=[OfRow()]),
        dict(logits_processor=[Alternate()]),
        dict(prefix_allowed_tokens_fn=few),
        dict(stopping_criteria=hf.StoppingCriteriaList([Sum()]), **ENDS),
        dict(use_cache=False),
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_generate_are_obeyed_along_every_path(model, options):
    inputs = ids(11, 6)
    want = model.generate(**inputs, **greedy(20), **options)
    got = model.generate(**inputs, **greedy(20), **options, **how("itself", model))
    assert got.tolist() == want.tolist()


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "options",
    [
        dict(temperature=0.6),
        dict(top_k=0, temperature=1.3),
        dict(top_k=9, top_p=0.8, min_p=0.02, typical_p=0.9),
        dict(epsilon_cutoff=0.01, repetition_penalty=1.2, renormalize_logits=True),
        dict(logits_processor=[Alternate()], num_return_sequences=2),
    ],
    ids=lambda options: next(iter(options)),
)
def test_seed_fixes_the_sampled_text_for_every_drafter(model, options):
    call = partial(model.generate, **ids(5, 8), max_new_tokens=16, do_sample=True)
    texts = []
    for drafter in DRAFTERS:
        torch.manual_seed(11)
        texts.append(call(**options, **how(drafter, model)))
    assert texts[0].tolist() == texts[1].tolist() == texts[2].tolist()
    again = call(**options, **how("text", model))
    assert again.tolist() != texts[0].tolist(), "torch's generator did not go on"
    assert len({tuple(row) for row in texts[0].tolist()}) == len(texts[0]), (
        "rows share their noise"
    )


def test_sampled_tokens_have_the_distribution_of_transformers(model):
    inputs = {name: value.repeat(1000, 1) for name, value in ids(6).items()}
    options = dict(max_new_tokens=1, do_sample=True, top_k=4, temperature=0.8)
    theirs = model.generate(**inputs, **options)[:, -1]
    ours = model.generate(**inputs, **options, seed=3, **how("nothing", model))[:, -1]
    shares = [torch.bincount(tokens, minlength=320) / 1000 for tokens in (theirs, ours)]
    assert (shares[0] > 0).sum() > 1
    assert (shares[0] - shares[1]).abs().max() < 0.08


def test_greedy_text_leaves_the_global_generator_alone(model):
    before = torch.get_rng_state()
    model.generate(**ids(5), **greedy(3), **how("text", model))
    assert torch.equal(torch.get_rng_state(), before)


def test_plain_warpers_are_recognised_at_the_end_in_order(model):
    config = model.generation_config
    config = type(config)(do_sample=True, temperature=0.5, top_k=7, top_p=0.9)
    config._pad_token_tensor = config._eos_token_tensor = None
    processors = model._get_logits_processor(config, 3)
    assert split(processors) == ([], {"temperature": 0.5, "top_k": 7, "top_p": 0.9})
    assert split(processors[::-1]) == (processors[::-1][:2], {"temperature": 0.5})
    last = Alternate()
    assert split([*processors, last]) == ([*processors, last], {})


# ---- stopping


def test_stop_strings_cut_inside_an_accepted_block_and_across_tokens(shipped, enabled):
    target, _, tokenizer = shipped
    inputs = tokenizer("The capital of France is", return_tensors="pt")
    options = greedy(24)
    whole = target.generate(**inputs, **options)[0]
    text = tokenizer.decode(whole[inputs.input_ids.shape[1] :])
    for start in (3, 11):
        stop = text[start : start + 5]
        assert stop
        stops = dict(stop_strings=[stop], tokenizer=tokenizer)
        want = target.generate(**inputs, **options, **stops)
        asks = dict(speculative_decoding=True, draft_model=target)
        got = target.generate(**inputs, **options, **stops, **asks)
        assert got.tolist() == want.tolist()
        criteria = hf.StoppingCriteriaList([hf.StopStringCriteria(tokenizer, [stop])])
        got = target.generate(
            **inputs, **options, stopping_criteria=criteria, **how("itself", target)
        )
        assert got.tolist() == want.tolist()


def test_criterion_sees_every_prefix_once(model):
    seen = []

    class Watch(Sum):
        def __call__(self, input_ids, scores, **kwargs):
            seen.append(input_ids[0].tolist())
            return super().__call__(input_ids, scores)

    criteria = hf.StoppingCriteriaList([Watch()])
    got = model.generate(
        **ids(5), **greedy(40), stopping_criteria=criteria, **how("itself", model)
    )[0].tolist()
    assert len(got) < 45
    assert seen == [got[:length] for length in range(6, len(got) + 1)]


def test_time_that_is_up_ends_the_text_after_one_token(model):
    got = model.generate(
        **ids(5),
        max_new_tokens=30,
        max_time=1e-9,
        do_sample=False,
        **how("itself", model),
    )
    assert got.shape == (1, 6)


def test_streamer_gets_prompt_tokens_and_end(model):
    streamer = CollectedStream()
    got = model.generate(
        **ids(5), **greedy(9), streamer=streamer, **how("itself", model)
    )
    assert streamer.values == [
        got[:, :5].tolist(),
        *([token] for token in got[0, 5:].tolist()),
    ]
    assert streamer.ended == 1


def test_a_streamer_is_ended_when_a_call_is_refused(model):
    streamer = CollectedStream()
    with pytest.raises(InvalidRequest, match="2 rows"):
        model.generate(
            **ids(5, 5), max_new_tokens=9, streamer=streamer, **how("text", model)
        )
    assert streamer.ended == 1


# ---- what is returned


@pytest.mark.parametrize(
    "options", [dict(), dict(logits_processor=[Alternate()], repetition_penalty=1.4)]
)
def test_scores_and_logits_are_those_of_transformers(model, options):
    options = dict(options, **greedy(12), **OUTPUT)
    options |= dict(output_scores=True, output_logits=True)
    want = model.generate(**ids(7, 4), **options)
    got = model.generate(**ids(7, 4), **options, **how("itself", model))
    assert got.sequences.tolist() == want.sequences.tolist()
    for name in ("logits", "scores"):
        ours, theirs = torch.stack(got[name]), torch.stack(want[name])
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert [row.tokens for row in got.stats] == [12, 12]
    assert got.stats[0].accepted > 0


def test_sampled_scores_are_filtered_and_change_nothing(model):
    options = dict(max_new_tokens=12, do_sample=True, top_k=5, seed=4)
    options |= how("itself", model)
    plain = model.generate(**ids(7), **options)
    got = model.generate(**ids(7), **options, **OUTPUT, output_scores=True)
    assert got.sequences.tolist() == plain.tolist()
    assert [(step > -torch.inf).sum().item() for step in got.scores] == [5] * 12
    pairs = zip(got.scores, got.sequences[0, 7:], strict=True)
    assert all(step[0, token] > -torch.inf for step, token in pairs)
    assert got.seeds == (4,)
    assert got.logits is None


def test_a_row_that_has_ended_says_padding_with_certainty(model):
    options = dict(eos_token_id=list(range(0, 320, 9)), pad_token_id=7, **greedy(20))
    options |= dict(**OUTPUT, output_scores=True)
    got = model.generate(**ids(3, 17, 9, 1), **options, **how("text", model))
    short = int(torch.tensor([row.tokens for row in got.stats]).argmin())
    assert got.stats[short].tokens < len(got.scores)
    assert got.scores[-1][short].softmax(-1)[7] == 1


# ---- the model comes back


def state(model):
    modules = [(name, type(one), one.training) for name, one in model.named_modules()]
    weights = model.state_dict(keep_vars=True).items()
    ids = [(name, id(weight), weight.sum().item()) for name, weight in weights]
    return model.config._attn_implementation, [*map(id, model.modules())], modules, ids


class Broken(hf.LogitsProcessor):
    def __call__(self, input_ids, scores):
        raise RuntimeError("the processor is broken")


def test_target_and_draft_are_given_back_as_they_were(model):
    small = tiny_models.build("qwen2")
    model.train()
    model.model.layers[0].eval()
    before, options = (state(model), state(small)), greedy(6)
    plain = model.generate(**ids(5), **options)
    model.generate(**ids(5), **options, **OURS, drafter=small, nodes=3)
    assert (state(model), state(small)) == before
    broken = dict(drafter=small, nodes=0, logits_processor=[Broken()])
    with pytest.raises(RuntimeError, match="the processor is broken"):
        model.generate(**ids(5), **options, **OURS, **broken)
    assert (state(model), state(small)) == before
    assert model.generate(**ids(5), **options).tolist() == plain.tolist()
    model.eval()


def test_auto_chooses_among_the_methods_that_suit_the_drafter():
    load = partial(hf.AutoModelForCausalLM.from_pretrained, dtype=torch.float32)
    model, small = load(starter.target()), load(starter.draft())
    options = greedy(16)
    plain = model.generate(**ids(5), **options).tolist()
    for drafter in (None, small):
        for method in ("auto", None):
            auto = dict(drafter=drafter, method=method, **OURS)
            ours = model.generate(**ids(5), **options, **auto)
            assert ours.tolist() == plain


def test_a_bfloat16_model_is_given_back_too():
    model = hf.AutoModelForCausalLM.from_pretrained(
        starter.target(), dtype=torch.bfloat16
    )
    before, call = state(model), partial(model.generate, **ids(5), **greedy(8))
    plain = call()
    assert call(**how("text", model)).shape == plain.shape
    assert state(model) == before
    assert call().tolist() == plain.tolist()


def test_changed_weights_are_seen_at_once():
    model = tiny_models.build("llama")
    call = partial(model.generate, **ids(5), **greedy(12))
    before = call(**how("text", model))
    model.model.layers[0].mlp.down_proj.weight.data.mul_(-3)
    assert call().tolist() != before.tolist()
    assert call(**how("text", model)).tolist() == call().tolist()


def test_a_hook_in_a_layer_is_obeyed():
    model = tiny_models.build("llama")
    model.model.layers[1].mlp.down_proj.register_forward_hook(
        lambda module, args, output: output * -2
    )
    call = partial(model.generate, **ids(5), **greedy(12))
    assert call(**how("itself", model)).tolist() == call().tolist()


def test_a_model_is_probed_once_until_it_is_built_differently():
    model = tiny_models.build("llama")
    with borrowed_model(model) as (_, first):
        capability = first.capability
    with borrowed_model(model) as (again, second):
        assert second is first
        assert again.capability is capability
        assert again.mode is Mode.TREE
    model.double()
    with borrowed_model(model) as (_, third):
        assert third.capability is not capability


def test_records_keep_no_model_alive():
    known = ModelRecord()
    known.refresh(tiny_models.build("llama"))
    assert known.shape
    from foreword.hf import borrowed as module

    model, before = tiny_models.build("llama"), len(module._RECORDS)
    with borrowed_model(model):
        # others may be freed meanwhile, so a count says nothing
        assert model in module._RECORDS
    del model
    import gc

    gc.collect()
    assert len(module._RECORDS) <= before


def test_two_threads_take_turns_with_one_model(model):
    want = model.generate(**ids(5), **greedy(12)).tolist()
    got = []

    def work():
        options = greedy(12) | how("itself", model)
        got.append(model.generate(**ids(5), **options).tolist())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [want] * 3


def test_two_threads_may_borrow_two_models_crosswise():
    models = [tiny_models.build("llama") for _ in range(2)]
    want = [one.generate(**ids(5), **greedy(6)).tolist() for one in models]
    got, start = {}, threading.Barrier(2, timeout=60)

    def work(mine: int) -> None:
        options = how("text", models[mine]) | {"drafter": models[1 - mine]}
        start.wait()
        got[mine] = [models[mine].generate(**ids(5), **greedy(6), **options).tolist()]

    options = dict(target=work, daemon=True)
    threads = [threading.Thread(args=(mine,), **options) for mine in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [got.get(mine) for mine in range(2)] == [[one] for one in want]


class Learnt(DraftBudget):
    """Allows four draft tokens a round until one is learnt from, then none."""

    rounds = 0

    def nodes(self, sequence, others):
        return 0 if self.rounds else 4

    def learn(self, sequence, outcome):
        self.rounds += 1


def drafted(model, inputs, want, **options):
    """Draft tokens of a call whose text is `want`."""
    found = model.generate(**inputs, **greedy(6), **OUTPUT, **options)
    assert found.sequences.tolist() == want.tolist()
    return sum(stats.drafted for stats in found.stats)


def test_next_call_with_same_drafter_keeps_its_budget(monkeypatch):
    monkeypatch.setitem(BUDGETS, "learnt", Learnt)
    monkeypatch.setattr("foreword.budget.DEFAULT_BUDGET", "learnt")
    model, small = tiny_models.build("llama"), tiny_models.build("qwen2")
    inputs = ids(9)
    want = model.generate(**inputs, **greedy(6))
    call = partial(drafted, model, inputs, want)
    ours = OURS
    # Without noise both rules give the text of transformers.
    for options in (
        dict(drafter=small),
        dict(drafter=model),
        dict(drafter=small, rule="same-distribution"),
    ):
        assert call(**ours, **options) == 4, "a new drafter is tried"
        assert call(**ours, **options) == 0
    with foreword.enable():
        assert call(draft_model=small) == 0
    assert call(**ours, drafter=small, nodes=2) > 0
    assert call(**ours, drafter=small, budget="learnt") == 4
    assert call(**ours, drafter=small, budget="learnt") == 0


def test_budget_of_a_failed_call_is_discarded(monkeypatch):
    monkeypatch.setitem(BUDGETS, "learnt", Learnt)
    model, inputs = tiny_models.build("llama"), ids(9)
    call = partial(model.generate, **inputs, **OURS, drafter=model, budget="learnt")

    class Late(hf.LogitsProcessor):
        def __call__(self, input_ids, scores):
            if input_ids.shape[1] > 15:
                raise RuntimeError("the processor is broken")
            return scores

    with pytest.raises(RuntimeError, match="the processor is broken"):
        call(**greedy(12), logits_processor=[Late()])
    found = call(**greedy(6), **OUTPUT)
    assert found.stats[0].drafted == 4


# ---- refusals


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (dict(num_beams=2), "num_beams=2"),
        (dict(guidance_scale=1.5), "guidance_scale=1.5"),
        (dict(output_attentions=True, **OUTPUT), "output_attentions"),
        (dict(output_hidden_states=True, **OUTPUT), "hidden_states"),
        (dict(nodes=65), "nodes must be"),
        (dict(seed=-1, do_sample=True), "seed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_served_is_refused_by_name(model, options, says):
    with pytest.raises(InvalidRequest, match=says):
        model.generate(**ids(5), max_new_tokens=4, **OURS, **options)


def test_inputs_that_cannot_be_served_are_refused(model):
    call = partial(model.generate, max_new_tokens=4, **OURS)
    mask = torch.tensor([[1, 1], [1, 0]])
    with pytest.raises(InvalidRequest, match="padded on the right"):
        call(input_ids=torch.tensor([[1, 2], [3, 4]]), attention_mask=mask)
    cache = model.generate(**ids(5), max_new_tokens=4, **OUTPUT).past_key_values
    with pytest.raises(InvalidRequest, match="past_key_values"):
        call(**ids(20), past_key_values=cache)
    with pytest.raises(UnknownMethod, match="nonsense"):
        call(**ids(5), method="nonsense")
    load = partial(hf.AutoModelForCausalLM.from_pretrained, dtype=torch.float32)
    with pytest.raises(InvalidRequest, match="another tokenizer"):
        call(**ids(5), drafter=load(starter.draft()))


# ---- enable


def test_the_spellings_people_use_are_served(shipped, enabled):
    target, draft, tokenizer = shipped
    inputs = tokenizer("Once upon a time", return_tensors="pt")
    call = partial(target.generate, **inputs, **greedy(16), **OUTPUT)
    want = call()
    assert not hasattr(want, "stats")
    for options in (
        dict(draft_model=draft, speculative_decoding=True),
        dict(draft_model=draft),
        dict(draft_model=str(starter.draft())),
        dict(assistant_model=draft),
        dict(speculative_decoding=True),
        dict(prompt_lookup_num_tokens=3),
        dict(assistant_early_exit=5),
    ):
        got = call(**options)
        assert got.sequences.tolist() == want.sequences.tolist()
        assert got.stats, f"{options} went to transformers"
    assert not hasattr(call(speculative_decoding=False, draft_model=draft), "stats")


def test_enable_is_undone_wholly_and_counts_once():
    original = hf.GenerationMixin.generate
    with foreword.enable():
        patched = hf.GenerationMixin.generate
        assert patched is not original
        with foreword.enable():
            assert hf.GenerationMixin.generate is patched
        assert hf.GenerationMixin.generate is patched, "the outer block lasts"
    assert hf.GenerationMixin.generate is original
    foreword.disable()
    assert hf.GenerationMixin.generate is original


def test_what_cannot_be_served_goes_to_transformers_with_one_warning(model, enabled):
    call = partial(model.generate, **ids(5), **greedy(4), num_beams=2)
    want = call()
    with pytest.warns(UserWarning, match="num_beams=2") as caught:
        got = call(speculative_decoding=True)
    assert got.tolist() == want.tolist()
    assert len(caught) == 1
