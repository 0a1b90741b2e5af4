"""Tokens that the device draws and reads before the host has them change no text."""

from dataclasses import replace

import pytest
import torch

import starter
from foreword.draft.lm import LanguageModelDrafter
from foreword.model import Model, Read
from foreword.model.executors.cuda.ahead import AheadBackend
from foreword.types import SamplingParams
from foreword_train.methods.lm import load
from model.cuda import test_graph
from running import Case, draft, engine, finish, outputs, plain, prompts, target

traced = test_graph.traced
pytestmark = pytest.mark.usefixtures("traced")


class Watched(AheadBackend):
    """Counts the forwards that the host began with tokens of its own."""

    calls = 0

    def _run(self, reads, layers, tokens=None):
        self.calls += tokens is None
        return super()._run(reads, layers, tokens)


def model(runner=test_graph.at_once) -> Model:
    hf = load(starter.draft(), torch.float32)
    made = Model(hf, known=replace(target().capability, backend="graph"), swaps=[])
    made.backend = Watched(hf, runner, (64,))
    return made


def case(heat: float, length: int = 12, number: int = 1, **params) -> Case:
    params |= dict(temperature=heat, seed=5, max_tokens=length, ignore_eos=True)
    return Case(prompts()[number], SamplingParams(**params))


@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_the_device_reads_its_own_tokens(heat, traced):
    made = model(traced)
    asked = [case(heat, logprobs=2), case(heat, number=2)]
    want = plain(draft(), asked)
    answers = plain(made, asked)
    assert outputs(answers) == outputs(want)
    # one forward for each prompt; the last token of a text is not read
    assert made.backend.calls == 2
    assert traced.played == sum(len(answer.tokens) for answer in answers)
    for mine, plainly in zip(answers[0].logprobs, want[0].logprobs, strict=True):
        assert mine.logprob == pytest.approx(plainly.logprob, abs=1e-3)


def test_a_text_that_stops_leaves_nothing_to_the_next():
    made = model()
    (whole,) = plain(made, [case(0.8)])
    stops = [case(0.8, stop_token_ids=(whole.tokens[5],)), case(0.8)]
    found = plain(made, stops)
    assert found[0].tokens == whole.tokens[:6]
    assert found[1].tokens == whole.tokens


@pytest.mark.parametrize("together", [True, False])
def test_texts_that_come_and_go_are_those_of_one_at_a_time(together):
    made = model()
    cases = [case(0.8, 14), case(0.0, 4, 2), case(0.5, 6, 3)]
    want = [answer.tokens for answer in plain(draft(), cases)]
    loop = engine(made)
    requests = [one.request(made.eos) for one in cases]
    loop.add(requests[0])
    for _ in range(0 if together else 3):
        loop.step()
    loop.add(requests[1])
    loop.add(requests[2])
    while not loop.idle:
        loop.step()
    assert [one.tokens[one.prompt :] for one in requests] == want
    # the prompts take two forwards, and nothing else is begun by the host
    assert made.backend.calls == 2 or not together


def test_a_prompt_is_read_beside_a_forward_that_was_begun():
    greedy, texts = [(0.0, None)], [list(prompts()[number]) for number in (1, 2)]
    backend, other = model().backend, model().backend
    for each in (backend, other):
        each.open(1, 64)
        each.open(2, 64)
    _, (token,) = backend.read_and_draw([Read(1, 0, texts[0])], greedy, [True])
    reads = [Read(2, 0, texts[1], keep=2), Read(1, len(texts[0]), [token])]
    before = backend.calls
    found = backend.read(reads)
    assert backend.calls == before + 1
    other.read([Read(1, 0, texts[0])])
    test_graph.same([found], [other.read(reads)])


@pytest.mark.parametrize(
    "params", [dict(top_p=0.9), dict(repetition_penalty=1.3), dict(temperature=0.0)]
)
def test_other_parameters_keep_the_host_in_between(params):
    made = model()
    asked = case(0.8)
    asked = replace(asked, params=replace(asked.params, **params))
    assert outputs(plain(made, [asked])) == outputs(plain(draft(), [asked]))
    assert (made.backend.calls == 1) == ("temperature" in params)


def test_a_drafter_keeps_the_host_in_between():
    made = model()
    asked = case(0.8, 20)
    (found,) = finish(engine(made, LanguageModelDrafter(draft()), 4), [asked])
    assert found.tokens == plain(draft(), [asked])[0].tokens
    stats = found.request.stats
    assert stats.accepted > 3
    assert made.backend.calls == stats.rounds


def test_a_forward_begun_in_vain_is_not_taken():
    greedy, prompt = [(0.0, None)], list(prompts()[1])
    backend, count = model().backend, len(prompt)

    def again(prompt: list[int], token: int) -> torch.Tensor:
        other = model().backend
        other.open(1, 64)
        other.read([Read(1, 0, prompt)])
        return other.read([Read(1, count, [token])])

    backend.open(1, 64)
    _, (token,) = backend.read_and_draw([Read(1, 0, prompt)], greedy, [True])
    read = [Read(1, count, [token + 1])]
    logits, _ = backend.read_and_draw(read, greedy, [False])
    test_graph.same([logits], [again(prompt, token + 1)])
    backend.read_and_draw([Read(1, 0, prompt)], greedy, [True])
    backend.close(1)
    # another text with this number, which goes on with the same token
    backend.open(1, 64)
    backend.read([Read(1, 0, prompt[::-1])])
    logits = backend.read([Read(1, count, [token])])
    test_graph.same([logits], [again(prompt[::-1], token)])
