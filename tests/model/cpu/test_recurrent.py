"""Models with recurrent layers: draft tokens leave no trace in their states."""

import copy
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch
import transformers as hf

import tiny_models
from drafters import Foresight, RandomTree, known
from foreword.draft.cross_vocab.slem import StringMatchDrafter
from foreword.draft.cross_vocab.tli import IntersectionDrafter
from foreword.draft.lm import LanguageModelDrafter
from foreword.draft.lookup.recycle import RecyclingDrafter
from foreword.errors import InvalidRequest
from foreword.model import Mode, Model, Read
from foreword.model.cost_table import measured
from foreword.model.executors.native import recurrent
from foreword.model.executors.native.build import refused
from foreword.model.executors.native.recurrent import SLOTS, StateMemory
from foreword.model.view import view
from foreword.types import SamplingParams
from foreword_lab.bench.timed import timed
from grids import NEEDS_C, slow_case
from other_tokenizers import NEAR, pair
from running import Case, distribution, drafter, engine, finish, outputs, plain, prompts
from tiny_sizes import linear, sizes

pytestmark = NEEDS_C

ATTENTION, STATE = "full_attention", "linear_attention"
LAYERS = (STATE, STATE, ATTENTION, STATE)
SIZES = sizes(64, 96, 4, 2, head_dim=16) | dict(
    linear(8, 16, linear_num_key_heads=4),
    vocab_size=8192,
    max_position_embeddings=1024,
    initializer_range=0.06,
    tie_word_embeddings=True,
)


def random(*layers: str, **others: int) -> hf.PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(len(layers))
        named = dict(SIZES, num_hidden_layers=len(layers), layer_types=[*layers])
        config = hf.Qwen3_5TextConfig(**named | others)
        model = hf.AutoModelForCausalLM.from_config(config)
        tiny_models.disturb(model)
    return model.eval()


def built(*layers: str, **others: int) -> Model:
    return Model(random(*layers, **others).to(torch.bfloat16))


@cache
def target() -> Model:
    return built(*LAYERS)


@cache
def draft() -> Model:
    return built(STATE, ATTENTION)


@cache
def requests() -> list[Case]:
    cases = []
    for seed, (heat, prompt) in enumerate(product((0.0, 0.8), prompts()[:3])):
        long = dict(max_tokens=(24, 31)[seed % 2], ignore_eos=True)
        params = SamplingParams(temperature=heat, seed=seed, **long)
        cases.append(Case(prompt, params))
    return cases


@cache
def answers():
    return plain(target(), requests())


def convolving() -> Model:
    """Nothing but convolutions between its gates, and attention."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        others = ("linear", "head")
        sizes = {name: SIZES[name] for name in SIZES if not name.startswith(others)}
        layers = ["conv", "conv", ATTENTION, "conv"]
        config = hf.Lfm2Config(**sizes, num_hidden_layers=4, layer_types=layers)
        model = hf.AutoModelForCausalLM.from_config(config).eval()
        return Model(model.to(torch.bfloat16))


@cache
def short() -> Model:
    return convolving()


@cache
def said():
    return plain(short(), requests())


def near_draft():
    return replace(pair(NEAR, "bfloat16"), model=draft())


DRAFTERS = {
    "a chain": lambda answers: Foresight(known(answers()), spoilt=0.3),
    "a tree": lambda answers: RandomTree(known(answers()), spoilt=0.3),
    "nonsense": lambda answers: Foresight(known(answers()), spoilt=1.0),
    "recycled": lambda _: RecyclingDrafter(),
    "a draft model with states too": lambda _: LanguageModelDrafter(draft()),
    "a draft model with attention alone": lambda _: drafter("lm", "bfloat16"),
    "a draft model of another vocabulary": lambda _: IntersectionDrafter(near_draft()),
    "another spelling": lambda _: StringMatchDrafter(near_draft()),
    "its twin": lambda _: LanguageModelDrafter(built(*LAYERS)),
}


def states_of(backend):
    memory = backend.memory(StateMemory)
    assert memory is not None
    return memory.sequences


def check(model: Model, name: str, slots: int, answers) -> None:
    loop = engine(model, DRAFTERS[name](answers), 7, slots=slots, chunk=5)
    got = finish(loop, requests())
    assert outputs(got) == outputs(answers())
    assert loop.failed is None
    assert any(answer.request.stats.accepted for answer in got) is (name != "nonsense")
    assert states_of(model.backend) == {}


@pytest.mark.parametrize("model", [target, short])
def test_such_a_model_is_read_in_trees(model):
    assert model().backend.memory(StateMemory) is not None
    assert model().capability.mode is Mode.TREE


@pytest.mark.sample(5)
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("name", DRAFTERS)
def test_text_is_the_same_with_every_drafter(name, slots):
    check(target(), name, slots, answers)


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("name", ["a chain", "a tree", "nonsense"])
def test_text_is_the_same_with_states_of_convolutions(name, slots):
    check(short(), name, slots, said)


def test_draft_model_with_states_of_convolutions():
    loop = engine(short(), LanguageModelDrafter(convolving()), 7)
    got = finish(loop, requests())
    assert outputs(got) == outputs(said())
    stats = [answer.request.stats for answer in got]
    assert sum(one.accepted for one in stats) > sum(one.rounds for one in stats)


@pytest.mark.sample(2)
@pytest.mark.parametrize("rule", ["rejection", slow_case("block"), "traversal"])
def test_sampled_drafts_leave_no_trace(rule):
    """Greedy text read with drafts beside it is that of a read in one piece."""
    drafter = LanguageModelDrafter(draft())
    loop = engine(target(), drafter, 5, rule=rule, slots=4, chunk=5)
    got = finish(loop, requests())
    assert loop.failed is None
    assert any(answer.request.stats.accepted for answer in got)
    for answer in got:
        if answer.request.params.greedy:
            start, tokens = answer.request.prompt, answer.request.tokens
            said = distribution(target(), tokens).argmax(-1).tolist()
            assert said[start - 1 : -1] == tokens[start:]


def test_grown_tree_may_exceed_the_slots():
    """The twin's drafts are accepted only if its states are right in every branch."""
    loop = engine(target(), LanguageModelDrafter(built(*LAYERS)), 3 * SLOTS)
    got = finish(loop, requests())
    assert outputs(got) == outputs(answers())
    assert max(answer.request.stats.rounds for answer in got) <= 10


def text(count: int) -> list[int]:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(8192, (count,), generator=generator).tolist()


@pytest.fixture
def backend():
    backend = target().backend
    for name in (1, 2):
        backend.open(name, 1000)
    yield backend
    for name in (1, 2):
        backend.close(name)


def test_text_taken_back_is_read_anew_once(backend):
    words = text(60)
    backend.read([Read(1, 0, words[:40], keep=0)])
    state = states_of(backend)[1].state
    assert (state.folded, state.back) == (40, 0)
    seen = [backend.read([Read(1, 34, words[34:40], keep=1)])]
    assert (state.folded, state.back) == (28, 12)
    reads = [Read(1, past, words[past : past + 4], keep=1) for past in (36, 30, 34)]
    seen += [backend.read([read]) for read in reads]
    assert state.folded == 28  # nothing of this was read anew
    backend.read([Read(2, 0, words[:34], keep=0)])
    assert torch.equal(seen[-1], backend.read([Read(2, 34, words[34:38], keep=1)]))
    backend.read([Read(1, 38, words[38:55], keep=0)])
    assert state.folded == 55 - 12
    last = backend.read([Read(1, 55, words[55:], keep=1)])
    assert torch.equal(last, distribution(target(), words)[-1:])


def test_accepted_branch_is_read_anew_as_accepted(backend):
    words, tree = text(30), text(40)[30:37]
    backend.read([Read(1, 0, words + tree, [-1, 0, 1, -1, 3, 3, 5], keep=8)])
    backend.move(1, [33, 35, 36], 30)
    said = words + [tree[node] for node in (3, 5, 6)]
    backend.read([Read(1, 33, tree[:2], keep=1)])
    again = backend.read([Read(1, 32, [said[32], tree[0]], keep=1)])
    assert torch.equal(again, distribution(target(), [*said, tree[0]])[-1:])


def test_large_steps_decay_as_they_should():
    model = random(STATE, ATTENTION)
    mixer = model.model.layers[0].linear_attn
    with torch.no_grad():
        mixer.dt_bias.fill_(120)
        mixer.A_log.fill_(-7)
        model = model.to(torch.bfloat16)
        truth = copy.deepcopy(model).float()(torch.tensor([text(40)])).logits[0]
    error = distribution(Model(model), text(40)) - truth
    assert error.pow(2).mean().sqrt() < 0.05 * truth.std()


@pytest.mark.parametrize("back", [0, 9])
def test_more_draft_tokens_than_slots(backend, back):
    words, draft_tokens, nodes = text(50), text(63)[50:], text(123)[63:]
    states_of(backend)[1].back = back
    backend.read([Read(1, 0, words[:49], keep=0)])
    backend.read([Read(1, 49, words[49:] + draft_tokens[:5], keep=6)])
    parents = [max(node - 1 - node % 3, -1) for node in range(3 * SLOTS)]
    # Three draft tokens were accepted: the first two are known from the read
    # before, the last one is read again.
    read = draft_tokens[2:3] + nodes[: len(parents)]
    tree = backend.read([Read(1, 52, read, parents, keep=len(parents) + 1)])
    for last in (0, 5, 17, len(parents) - 1):
        path, node = list[int](), last
        while node >= 0:
            path, node = [nodes[node], *path], parents[node]
        wanted = distribution(target(), words + draft_tokens[:3] + path)[-1]
        assert torch.equal(tree[last + 1], wanted)


def test_many_scores_of_one_text(backend):
    words = text(400)
    every, last = (Read(1, 0, words, keep=400), Read(2, 0, words, keep=1))
    assert torch.equal(backend.read([every])[-1:], backend.read([last]))
    assert states_of(backend)[1].state.slots == SLOTS  # these were no draft tokens


HEADS = dict(linear_num_value_heads=4, linear_num_key_heads=4)


@pytest.mark.parametrize(
    ("others", "why"),
    [
        (dict(hidden_act="gelu_pytorch_tanh"), "another activation"),
        (dict(linear_key_head_dim=24), "unusual sizes"),
        (dict(HEADS, linear_value_head_dim=20), "unusual sizes"),
    ],
)
def test_other_sizes_are_refused_and_read_through_the_cache(others, why):
    with pytest.warns(UserWarning, match="runs in mode 'cache'"):
        model = built(STATE, ATTENTION, **others)
    assert why in (refused(model.hf) or "")
    assert model.capability.mode is Mode.CACHE


def test_without_any_attention_it_is_refused():
    model = random(STATE, STATE).to(torch.bfloat16)
    assert refused(model) == "none of its layers has attention"


def test_halves_cannot_be_left_out_of_such_a_model():
    with pytest.raises(InvalidRequest, match="recurrent state, which draft tokens can"):
        view(target(), bits=4)


def test_what_it_costs_is_measured_without_reading_a_text_anew(monkeypatch):
    """Keys can be copied to make a long text; a state cannot."""
    model, again = copy.copy(target()), list[int]()
    backend = timed(model)  # a benchmark looks on
    monkeypatch.setattr(recurrent, "_read_again", lambda *given: again.append(1))
    assert measured(backend, model.vocab, model.context, seconds=0.2).seconds[8] > 0
    assert again == []
    assert backend.reads > 8
    assert states_of(backend) == {}
