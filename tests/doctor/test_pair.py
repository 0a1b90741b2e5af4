"""A diagnosis finds a planted fault, ranks it by cost, and approves a good drafter."""

import json

import pytest
import torch

import starter
from drafters import Foresight, Truth
from folders import copied
from foreword import LLM, SamplingParams, bundled
from foreword.errors import InvalidRequest, ModelError
from foreword.model import load_tokenizer
from foreword.model.loading.checkpoint import Checkpoint
from foreword.prompts import load
from foreword.types import Request
from foreword_lab.bench.run import render
from foreword_lab.doctor import fit
from foreword_lab.doctor.finding import Diagnosis, Finding
from foreword_lab.doctor.measured import MeasuredPair
from foreword_lab.doctor.pair import DoctorOptions, examine
from other_tokenizers import FAR
from running import TEXTS

TARGET = str(starter.target())
DRAFT = str(starter.draft())
FEW = {"prompts": 3, "tokens": 16, "texts": TEXTS[:3], "device": "cpu"}
QUESTIONS = (
    "Define the word river.",
    "Who wrote Hamlet?",
    "What is a clock?",
    "Say a poem about winter.",
    "Name three birds.",
    "Why is the sea salt?",
)
"""Short prompts whose answers repeat little at their beginning."""


def findings(found: Diagnosis, level: str) -> str:
    return "\n".join(
        f"{finding.evidence} {finding.remedy}"
        for finding in found.findings
        if finding.level == level
    )


def named(found: Diagnosis, name: str) -> Finding:
    (finding,) = [one for one in found.findings if one.name == name]
    return finding


def test_good_draft_is_approved():
    found = examine(DoctorOptions(target=TARGET, draft=DRAFT, **FEW))
    assert found.subject["method"] == "lm"
    assert set(found.work) == {"0", "1"}
    assert found.work["0"]["first"] > 0.4
    assert found.work["0"]["tokens_per_pass"] > 1.5
    assert "first draft tokens accepted" in findings(found, "good")
    assert json.loads(json.dumps(found.as_json()))["work"]["0"]["propose"] > 0
    costs = [cause.cost for cause in found.causes]
    assert costs == sorted(costs, reverse=True)


def test_draft_of_random_weights_is_refused(tmp_path):
    draft = copied(starter.draft(), tmp_path / "draft")
    right = Checkpoint.read(draft)
    drawn = {name: torch.randn_like(old) for name, old in right.tensors.items()}
    Checkpoint("", right.config, drawn).write(draft)
    found = examine(DoctorOptions(target=TARGET, draft=str(draft), **FEW))
    cause = named(found, "low acceptance")
    assert not found.healthy
    assert cause.level == "bad"
    assert cause.speed is not None
    assert f"{cause.speed:.2f}× plain decoding" in cause.evidence
    assert "foreword data regenerate" in cause.remedy


def test_target_as_its_own_draft_is_too_dear():
    """Every draft token is accepted, but takes as long as a forward."""
    found = examine(DoctorOptions(target=TARGET, draft=TARGET, **FEW))
    assert found.work["0"]["first"] == 1
    cause = found.causes[0]
    assert cause.name == "dear drafter"
    assert cause.cost > 1
    assert "of a forward of the target" in cause.evidence
    assert "--method ngram" in cause.remedy


def test_other_chat_template_is_measured(tmp_path):
    draft = copied(starter.draft(), tmp_path / "draft")
    template = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    (draft / "chat_template.jinja").write_text(template, encoding="utf-8")
    few = {"prompts": 3, "tokens": 12, "device": "cpu"}
    found = examine(DoctorOptions(target=TARGET, draft=str(draft), **few))
    cause = named(found, "other chat template")
    # the weights were trained with the target's, so its own is no better
    assert cause.level == "note"
    assert not cause.is_cause
    assert "accepted in its own, " in cause.evidence


def test_draft_that_needs_its_own_chat_template_is_found():
    """It predicts what follows prompts in its own template, and nothing else."""
    llm = LLM(TARGET, method="none", nodes=1)
    chats = load("out-of-domain")[:3]
    theirs = load_tokenizer(starter.draft())
    theirs.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    own, ours = (
        [[*render(one, chat)] for chat in chats] for one in (theirs, llm.tokenizer)
    )
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    answers = {
        tuple(one.prompt_tokens): one.tokens for one in llm.generate(own, params)
    }
    llm.engine.default.drafter = Foresight(
        lambda s: answers.get(tuple(s.tokens[: s.prompt]), [])
    )
    pair = MeasuredPair(
        session=llm.session, draft=None, method="", chats=chats, prompts=ours, tokens=10
    )
    pair.figures["0"] = pair.again()
    (found,) = fit.templates(pair, llm.tokenizer, theirs)
    assert found.level == "bad"
    assert "100% of its first draft tokens are accepted in its own" in found.evidence
    assert found.speed is not None


def test_tokens_that_a_draft_lacks_are_counted(tmp_path):
    draft = FAR.save(tmp_path)
    with pytest.warns(UserWarning, match="another tokenizer"):
        found = examine(DoctorOptions(target=TARGET, draft=str(draft), **FEW))
    assert "another tokenizer" in named(found, "other tokenizer").evidence
    forced = examine(
        DoctorOptions(target=TARGET, draft=str(draft), method="tli", **FEW)
    )
    (lacking,) = [one for one in forced.findings if "vocabulary" in one.name]
    assert "that it can propose" in lacking.evidence


def test_wrong_vocabulary_map_is_found(tmp_path):
    """The head's outputs are mapped to the tokens that it was not trained for."""
    right = Checkpoint.read(bundled.head("eagle"))
    others = (~right.tensors["t2d"]).nonzero().flatten()
    size = len(right.tensors["d2t"])
    assert len(others) == size
    reduced = {"d2t": others - torch.arange(size), "t2d": ~right.tensors["t2d"]}
    tensors = right.tensors | reduced
    Checkpoint("", right.config, tensors).write(tmp_path)
    few = {"prompts": 2, "tokens": 12, "device": "cpu"}
    found = examine(DoctorOptions(draft=str(tmp_path), **few))
    cause = named(found, "wrong vocabulary map")
    assert cause.level == "bad"
    assert f"are not among the {size} that it can propose" in cause.evidence


@pytest.mark.slow
def test_lookups_that_have_seen_no_text_are_cold():
    """The same prompts again: what was answered once is looked up."""
    few = {"tokens": 24, "texts": QUESTIONS[:4] * 3, "device": "cpu"}
    found = examine(DoctorOptions(target=TARGET, method="suffix", **few))
    cause = named(found, "cold lookups")
    assert cause.cost > 1
    assert "in the first 4 answers" in cause.evidence
    assert "foreword index" in cause.remedy


def test_lookups_that_find_nothing_are_named():
    few = {"tokens": 8, "texts": QUESTIONS, "device": "cpu"}
    found = examine(DoctorOptions(target=TARGET, method="ngram", **few))
    cause = named(found, "nothing to draft")
    share = found.work["0"]["drafting"]
    assert share < 0.5
    assert f"only {share:.0%} of the passes" in cause.evidence


def test_cost_table_that_is_not_on_disk_is_noted(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    few = {"tokens": 4, "texts": TEXTS[:1], "device": "cpu"}
    request = DoctorOptions(target=TARGET, draft=DRAFT, **few)
    assert "Keep the folder" in named(examine(request), "cold cost table").remedy
    (table,) = tmp_path.rglob("costs/*.json")
    # as fast as it can be: it is never taken for outdated
    held = json.loads(table.read_text(encoding="utf-8"))
    held["seconds"] = dict.fromkeys(held["seconds"], 1e-09)
    table.write_text(json.dumps(held), encoding="utf-8")
    assert "cold cost table" not in {one.name for one in examine(request).findings}


RIGHT = (2, 5)


class Picky(Foresight):
    """Proposes the right tokens if it is shown the hidden states RIGHT."""

    def __init__(self, truth: Truth, shown: tuple[int, ...]) -> None:
        super().__init__(truth)
        self.hidden_layers = shown

    def token_at(self, sequence: Request, depth: int) -> int:
        return super().token_at(sequence, depth) if self.hidden_layers == RIGHT else 1


def test_wrong_hidden_states_are_found():
    llm = LLM(TARGET, method="none", nodes=1)
    prompts = [llm.tokenizer(text)["input_ids"] for text in TEXTS[:3]]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    answers = {
        tuple(one.prompt_tokens): one.tokens for one in llm.generate(prompts, params)
    }

    def finding(shown: tuple[int, ...]) -> Finding:
        llm.engine.default.drafter = Picky(
            lambda s: answers[tuple(s.tokens[: s.prompt])], shown
        )
        pair = MeasuredPair(
            session=llm.session, draft=None, method="", prompts=prompts, tokens=10
        )
        pair.figures["0"] = pair.again()
        (found,) = fit.hidden_layers(pair)
        return found

    assert finding(RIGHT).level == "good"
    wrong = finding((3, 6))
    assert wrong.level == "bad"
    assert wrong.speed is not None
    assert "its config names [3, 6]; write [2, 5] there" in wrong.remedy.lower()


@pytest.mark.slow
def test_head_with_shifted_layers_is_found(tmp_path):
    """A trained head whose config names later layers: it is better with earlier ones."""
    right = Checkpoint.read(bundled.head("dspark"))
    shifted = {**right.config, "target_layer_ids": [3, 7]}
    Checkpoint("", shifted, right.tensors).write(tmp_path)
    few = {"prompts": 8, "tokens": 32, "device": "cpu"}
    found = examine(DoctorOptions(draft=str(tmp_path), **few))
    cause = named(found, "wrong hidden states")
    assert cause.level == "bad"
    assert cause.evidence.startswith("with hidden states [3, 7] ")
    assert "write [3, 7] there" in cause.remedy


def test_drafter_that_cannot_be_loaded_is_refused(tmp_path):
    with pytest.raises(ModelError, match="cannot load a tokenizer"):
        examine(DoctorOptions(target=TARGET, draft=str(tmp_path / "nothing"), **FEW))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"holds neither config\.json nor"):
        examine(DoctorOptions(target=TARGET, draft=str(tmp_path / "empty"), **FEW))
    right = Checkpoint.read(bundled.head("eagle"))
    Checkpoint("", {**right.config, "vocab_size": 64}, right.tensors).write(tmp_path)
    with pytest.raises(ModelError, match="vocab_size is 64 there"):
        examine(DoctorOptions(draft=str(tmp_path), **FEW))
    with pytest.raises(InvalidRequest, match="needs a trained head"):
        examine(DoctorOptions(target=TARGET, method="eagle", **FEW))
    with pytest.raises(InvalidRequest, match="it chooses among several"):
        examine(DoctorOptions(target=TARGET, draft=DRAFT, method="auto", **FEW))
