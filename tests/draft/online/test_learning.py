"""A draft that learns while it serves: what it says matters to nothing's text, and its
draft tokens come true more often.
"""

import copy

import pytest
import torch

import starter
from foreword import LLM, Learning, SamplingParams
from foreword.draft.ensemble.fuse import FusedDrafter
from foreword.draft.lm import LanguageModelDrafter
from foreword.draft.lookup.ngram import NgramDrafter
from foreword.draft.online import replay, trainer
from foreword.draft.online.learner import OnlineLearner
from foreword.errors import InvalidRequest
from foreword.model import Model
from foreword.model.weights import copied, replace
from foreword.native.forward import library
from foreword.types import Scores
from running import Case, engine, finish, plain, prompts, target

FAST = "float32" if isinstance(library(), str) else "bfloat16"
EAGER = Learning(share=50.0, pause=60.0, rate=1e-3)
"""Learns in every pause between rounds."""
ASKED = Learning(share=1e-9, pause=60.0, rate=1e-3)
"""Learns only when `study` has it learn."""


@pytest.fixture(autouse=True)
def brief(monkeypatch):
    """Short samples and terms, so that a few hundred tokens make many of them."""
    monkeypatch.setattr(replay, "LEARNT", 16)
    monkeypatch.setattr(trainer, "EVALUATION", 64)
    monkeypatch.setattr(trainer, "TERM", 2)


def harmed(dtype: str = FAST, noise: float = 0.1) -> Model:
    """The draft of the family with noise on its weights."""
    model = Model.load(starter.draft(), dtype=dtype)
    made = copied(model)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    replace(model, made)
    return model


def learner(
    model: Model, settings: Learning = EAGER, dtype: str = FAST
) -> OnlineLearner:
    return OnlineLearner(LanguageModelDrafter(model), target(dtype), settings)


def requests(temperature: float, seeds: range, tokens: int = 48) -> list[Case]:
    return [
        Case(
            prompt,
            SamplingParams(
                temperature=temperature, seed=seed, max_tokens=tokens, ignore_eos=True
            ),
        )
        for seed in seeds
        for prompt in prompts()
    ]


def kept(model: Model, asked: list[Case], dtype: str = FAST) -> int:
    """How many draft tokens of a draft that does not learn are accepted."""
    answers = finish(engine(target(dtype), LanguageModelDrafter(model), 6), asked)
    return sum(answer.sequence.stats.accepted for answer in answers)


def study(
    trainable: OnlineLearner, seeds: range, dtype: str = FAST, rule: str = "match"
) -> None:
    """Let it read what the target says, then learn from all of that, again
    and again.
    """
    loop = engine(target(dtype), trainable, 4, rule=rule)
    for seed in seeds:
        # all texts are listened to, however long it takes
        trainable._capture_credit = 1.0
        finish(loop, requests(1.0, range(seed, seed + 1)))
        while trainable.learn():
            pass
    assert (loop.failed, trainable.progress.off) == (None, None)


# ---- the text


class Watched(LanguageModelDrafter):
    """Records some of its weights whenever it is called."""

    def __init__(self, model):
        super().__init__(model)
        self.rounds = []

    def _seen(self):
        # a step of learning changes every row
        some = torch.arange(0, self.model.vocab, 61)
        return self.model.embed(some).detach().clone()

    def propose(self, batch, nodes):
        before = self._seen()
        draft = super().propose(batch, nodes)
        self.rounds.append([before, self._seen()])
        return draft

    def observe(self, batch, draft, verdict, scores):
        super().observe(batch, draft, verdict, scores)
        self.rounds[-1].append(self._seen())


@pytest.mark.parametrize(
    "dtype", [pytest.param("float32", marks=pytest.mark.slow), FAST]
)
@pytest.mark.parametrize(
    ("temperature", "rule"),
    [
        (0.0, "match"),
        (1.0, "match"),
        pytest.param(1.0, "block", marks=pytest.mark.slow),
        pytest.param(1.0, "rejection", marks=pytest.mark.slow),
    ],
)
def test_learning_changes_no_text_and_weights_between_rounds_only(
    temperature, rule, dtype
):
    """A rule that compares distributions is exact where a draft token comes with the
    one it was drawn from, whatever that is.
    """
    asked = requests(temperature, range(1))[:4]
    watched = Watched(harmed(dtype))
    trainable = OnlineLearner(watched, target(dtype), EAGER)
    loop = engine(target(dtype), trainable, 4, rule=rule, slots=1)
    answers = finish(loop, asked)
    if rule == "match":
        assert [answer.said for answer in answers] == [
            answer.said for answer in plain(target(dtype), asked)
        ]
    assert all(answer.sequence.produced == 48 for answer in answers)
    assert (loop.failed, trainable.progress.off) == (None, None)
    assert trainable.progress.published > 0  # or nothing was shown
    for before, *later in watched.rounds:
        assert all(torch.equal(before, seen) for seen in later)
    changes = sum(
        not torch.equal(one[-1], other[0])
        for one, other in zip(watched.rounds, watched.rounds[1:], strict=False)
    )
    assert changes == trainable.progress.published + trainable.progress.returned


# ---- what is learnt


@pytest.mark.slow
def test_a_draft_that_was_harmed_recovers():
    model = harmed()
    before = kept(model, requests(1.0, range(90, 92)))
    trainable = learner(model, ASKED)
    study(trainable, range(6))
    after = kept(model, requests(1.0, range(90, 92)))
    assert trainable.progress.serving > trainable.progress.first + 0.05
    assert after > 1.6 * before


def test_it_learns_as_part_of_several():
    trainable = OnlineLearner(
        FusedDrafter([NgramDrafter(), LanguageModelDrafter(harmed())]),
        target(FAST),
        ASKED,
    )
    study(trainable, range(3))
    assert trainable.progress.published > 0


def test_it_learns_where_nothing_is_drafted():
    trainable = learner(harmed(), ASKED)
    trainable._capture_credit = 1.0
    finish(engine(target(FAST), trainable, 0), requests(1.0, range(1)))
    assert trainable.learn()


def test_worse_weights_never_serve():
    model = Model.load(starter.draft(), dtype=FAST)
    before = copy.deepcopy(copied(model).state_dict())
    trainable = learner(model, Learning(share=1e-9, rate=3.0))  # which can only do harm
    study(trainable, range(3))
    assert trainable.progress.evaluations == 2
    assert trainable.progress.published == 0
    assert trainable._trainer._rate == 3.0 / 4, (
        "each time that what was learnt is thrown away it learns more slowly"
    )
    assert all(
        torch.equal(weight, before[name])
        for name, weight in copied(model).state_dict().items()
    )


def test_first_weights_return_where_they_are_better():
    """As when other texts are asked for than were learnt: here, what serves is harmed
    behind the learner's back.
    """
    model = Model.load(starter.draft(), dtype=FAST)
    first = copied(model).state_dict()
    trainable = learner(model, ASKED)
    taught = trainable._trainer
    with torch.no_grad():
        for parameter in taught.module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    taught._publish(taught._now())
    assert not all(
        torch.equal(weight, first[name])
        for name, weight in copied(model).state_dict().items()
    )
    trainable.progress.steps = 1
    study(trainable, range(1))
    assert (trainable.progress.evaluations, trainable.progress.returned) == (1, 1)
    assert all(
        torch.equal(weight, first[name])
        for name, weight in copied(model).state_dict().items()
    )


# ---- what it costs


def filled(settings: Learning, seeds: int = 1) -> OnlineLearner:
    """One that has samples to learn from."""
    trainable = learner(harmed(), settings)
    trainable._capture_credit = 1.0
    finish(engine(target(FAST), trainable, 4), requests(1.0, range(seeds)))
    trainable._credit = trainable._capture_credit = 0.0
    return trainable


def test_time_is_earned_before_it_is_spent():
    trainable = filled(Learning(share=1e-9))
    object.__setattr__(trainable.settings, "share", 0.5)
    before = trainable._trainer.module.lm_head.weight.grad
    trainable.rest(0.0)
    # nothing was earned, nothing is done
    assert before is trainable._trainer.module.lm_head.weight.grad is None
    trainable.rest(0.2)
    assert trainable._trainer.module.lm_head.weight.grad is not None
    trainable._credit = -0.1
    gradient = trainable._trainer.module.lm_head.weight.grad.clone()
    trainable.rest(0.1)  # earns half of the debt
    assert trainable._credit < 0
    assert torch.equal(trainable._trainer.module.lm_head.weight.grad, gradient)
    trainable.rest(1000.0)
    assert trainable._credit < 1.0  # what was not spent is not saved up without end


def test_text_is_captured_where_time_allows():
    trainable = learner(harmed(), ASKED)
    trainable._capture_credit = -1.0
    finish(engine(target(FAST), trainable, 4), requests(1.0, range(1)))
    assert (trainable._buffer.held, trainable.learn()) == (0, False)


def test_pieces_of_work_are_cut_to_pause_that_is_allowed():
    trainable = filled(Learning(share=1e-9, pause=1e-6))
    trainable._trainer.window = 256
    for _ in range(4):
        assert trainable.learn()
    assert trainable._trainer.window == 32
    object.__setattr__(trainable.settings, "pause", 60.0)
    for _ in range(2):
        assert trainable.learn()
    assert trainable._trainer.window > 32


def test_memory_is_what_was_asked_for():
    trainable = filled(Learning(share=1e-9, memory=600), seeds=2)
    assert 400 < trainable._buffer.held <= 600


# ---- what goes wrong


def test_a_failure_ends_learning_and_nothing_else():
    asked = requests(1.0, range(1))
    trainable = learner(harmed())
    loop = engine(target(FAST), trainable, 4, slots=2)
    with torch.no_grad():
        # no forward can work any more
        trainable._trainer.module.lm_head.weight = torch.nn.Parameter(torch.zeros(3, 3))
    with pytest.warns(RuntimeWarning, match="learns no more") as said:
        answers = finish(loop, asked)
    assert len(said) == 1
    assert loop.failed is None
    assert trainable.progress.off is not None
    assert [answer.said for answer in answers] == [
        answer.said for answer in plain(target(FAST), asked)
    ]
    assert sum(answer.sequence.stats.accepted for answer in answers) > 0


def test_model_that_cannot_be_copied_drafts_only():
    model = Model.load(starter.draft(), dtype=FAST)
    model.hf.model.register_parameter("more", torch.nn.Parameter(torch.zeros(1)))
    model.hf.model.norm.register_buffer("lost", torch.zeros(2))
    hidden = model.hf.state_dict
    model.hf.state_dict = lambda: {
        name: weight for name, weight in hidden().items() if "norm" not in name
    }
    with pytest.warns(RuntimeWarning, match="learns no more"):
        trainable = learner(model)
    answers = finish(engine(target(FAST), trainable, 4), requests(1.0, range(1)))
    assert sum(answer.sequence.stats.accepted for answer in answers) > 0


@pytest.mark.parametrize(
    "wrong",
    [{"share": 0}, {"share": float("nan")}, {"memory": 10}, {"rate": -1}, {"pause": 0}],
)
def test_settings_are_checked(wrong):
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        Learning(**wrong)


def test_who_has_nothing_to_learn_is_refused():
    with pytest.raises(InvalidRequest, match="nothing to learn"):
        OnlineLearner(NgramDrafter(), target(FAST))
    with pytest.raises(InvalidRequest, match="the target itself"):
        OnlineLearner(LanguageModelDrafter(target(FAST)), target(FAST))
    for method in ("ngram", "tli", "fuse(suffix, ngram)"):
        with pytest.raises(InvalidRequest, match="nothing to learn"):
            LLM(method=method, learn=True)


def test_learn_is_yes_no_or_how(unchecked):
    with pytest.raises(InvalidRequest, match="learn must be"):
        LLM(learn="fast")


# ---- all of it together


@pytest.mark.slow
def test_what_was_learnt_is_saved_and_served_again(tmp_path):
    llm = LLM(draft=harmed("auto"), learn=ASKED, nodes=4)
    params = [
        SamplingParams(seed=seed, max_tokens=40, ignore_eos=True) for seed in range(8)
    ]
    for _ in range(4):
        llm.engine.drafter._capture_credit = 1.0
        texts = [answer.text for answer in llm.generate(["The river"] * 8, params)]
        while llm.engine.drafter.learn():
            pass
    assert llm.progress.published > 0
    llm.save_draft(tmp_path / "learnt")
    again = LLM(draft=tmp_path / "learnt", nodes=4)
    assert again.progress is None
    stored = Model.load(tmp_path / "learnt")
    mine, theirs = (
        copied(one).state_dict() for one in (llm.engine.drafter.trainable, stored)
    )
    assert all(torch.equal(weight, theirs[name]) for name, weight in mine.items())
    assert [
        answer.text for answer in again.generate(["The river"] * 8, params)
    ] == texts
    with pytest.raises(InvalidRequest, match="exists already"):
        llm.save_draft(tmp_path / "learnt")
    with pytest.raises(InvalidRequest, match="cannot save a draft model"):
        LLM(method="ngram").save_draft(tmp_path / "none")


def test_distributions_that_are_not_finite_teach_nothing():
    """Texts with such logits are left out; from the others it learns, is evaluated and
    serves.
    """

    class Spoiling(OnlineLearner):
        def observe(self, batch, draft, verdict, scores):
            logits = [one.clone() for one in scores.logits]
            bad = (float("nan"), float("inf"), float("-inf"))
            for row, value in zip(logits, bad, strict=False):
                row[:, 5:] = value
            super().observe(batch, draft, verdict, Scores(tuple(logits)))

    spoilt = Spoiling(LanguageModelDrafter(harmed()), target(FAST), ASKED)
    study(spoilt, range(3))
    assert spoilt.progress.steps > 0
    assert spoilt.progress.evaluations > 0
    assert 0 < spoilt.progress.serving < 1
    assert all(
        bool(weight.isfinite().all()) for weight in spoilt._trainer.module.parameters()
    )
