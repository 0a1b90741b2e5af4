"""Causes in a drafter's fit: tokenizer, chat template, hidden states, vocabulary."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from foreword.draft import method as find_method
from foreword.errors import VocabularyMismatch
from foreword.model import Tokenizer, check_same, load_tokenizer, need_tokenizer
from foreword.registry import MODEL
from foreword_lab.bench.run import render
from foreword_lab.doctor.figures import Figures
from foreword_lab.doctor.finding import MATTERS, Finding
from foreword_lab.doctor.measured import MeasuredPair

CHAT = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello."},
)
SPARSE = 0.5
"""Share of the answers' tokens that a drafter can propose, below which its vocabulary
map is wrong.
"""


def tokenizer(pair: MeasuredPair) -> list[Finding]:
    """Check that both models have the same tokens and the same chat template."""
    takes_model = find_method(pair.method).about.takes == MODEL
    if not (pair.draft and takes_model):
        return []
    ours = need_tokenizer(pair.session.tokenizer)
    trusted = pair.session.target.trust_remote_code
    theirs = load_tokenizer(pair.draft, trust_remote_code=trusted)
    try:
        check_same(ours, theirs)
    except VocabularyMismatch as error:
        evidence = f"another tokenizer: {error}"
        remedy = (
            "Draft tokens are translated; a draft with the same tokenizer is faster"
        )
        return [Finding("note", "other tokenizer", evidence, remedy)]
    same = Finding("good", "tokenizer", "every token has the same id in both")
    return [same, *templates(pair, ours, theirs)]


def templates(pair: MeasuredPair, ours: Tokenizer, theirs: Tokenizer) -> list[Finding]:
    """Compare two chat templates, and measure with the drafter's if they differ."""
    if not (ours.chat_template and theirs.chat_template):
        return []
    mine, its = (
        one.apply_chat_template([*CHAT], tokenize=False) for one in (ours, theirs)
    )
    if mine == its:
        return []
    name, evidence = "other chat template", "its chat template is not the target's"
    remedy = (
        "Prompts use the target's; train it on that (foreword data regenerate, then "
        "foreword train), or give the draft model's folder the target's chat template "
        "if it was trained with that"
    )
    if not pair.chats:
        return [Finding("note", name, evidence, remedy)]
    pair.note("the same in its own chat template")
    figures = pair.again([render(theirs, chat) for chat in pair.chats])
    now = pair.greedy
    evidence += (
        f"; {figures.first:.0%} of its first draft tokens are accepted in its own, "
        f"{now.first:.0%} in the target's"
    )
    if not figures.clearly_above(now):
        return [Finding("note", name, evidence, remedy)]
    could = now.with_acceptance(figures).best
    return [Finding("bad", name, evidence, remedy, could / now.best, could)]


def hidden_layers(pair: MeasuredPair) -> list[Finding]:
    """Check a head's hidden states against neighbours: some configs count from 1."""
    drafter = pair.session.engine.drafter
    layers = drafter.hidden_layers
    if not layers:
        return []
    last = pair.session.target.hf.config.get_text_config().num_hidden_layers
    now = pair.greedy
    for shift in (-1, 1):
        states = tuple(state + shift for state in layers)
        if not all(0 <= state <= last for state in states):
            continue
        pair.note(f"the same with hidden states {list(states)}")
        with _shown(pair, states):
            shifted = pair.again()
        if shifted.clearly_above(now):
            return [_shifted(layers, states, now, shifted)]
    evidence = (
        f"hidden states {list(layers)} are the right ones: their neighbours are no "
        "better"
    )
    return [Finding("good", "hidden states", evidence)]


@contextmanager
def _shown(pair: MeasuredPair, states: tuple[int, ...]) -> Iterator[None]:
    """Let the drafter read other hidden states for a while."""
    drafter = pair.session.engine.drafter
    layers = drafter.hidden_layers
    drafter.hidden_layers = states
    try:
        yield
    finally:
        drafter.hidden_layers = layers


def _shifted(
    layers: tuple[int, ...], states: tuple[int, ...], now: Figures, shifted: Figures
) -> Finding:
    could = now.with_acceptance(shifted).best
    evidence = (
        f"with hidden states {list(states)} {shifted.first:.0%} of its first draft "
        f"tokens are accepted, with {list(layers)} {now.first:.0%}"
    )
    remedy = (
        f"Its config names {list(layers)}; write {list(states)} there, as transformers "
        "numbers them"
    )
    cost = could / now.best
    return Finding("bad", "wrong hidden states", evidence, remedy, cost, could)


def vocabulary(pair: MeasuredPair) -> list[Finding]:
    """Count the tokens of the answers that the drafter cannot propose."""
    drafter = pair.session.engine.drafter
    # of a drafter that can propose some tokens alone; None = not known yet
    ids: Tensor | None = getattr(drafter, "vocabulary", None)
    written = Counter(token for answer in pair.answers for token in answer)
    if ids is None or not written:
        return []
    known = set(ids.tolist())
    share = sum(written[token] for token in known) / written.total()
    evidence = (
        f"{1 - share:.1%} of the tokens of the answers are not among the {len(known)} "
        "that it can propose"
    )
    now = pair.greedy
    could = now.accepting(0.0, 1 / max(share, 1e-3)).best
    wrong = share < SPARSE
    if not wrong and could < MATTERS * now.best:
        return [Finding("good", "vocabulary", evidence)]
    remedy = (
        "Give a drafter with the target's tokenizer, or a head that was trained with "
        "more tokens of such texts"
    )
    cost = could / now.best
    if wrong:
        name = "wrong vocabulary map"
        return [Finding("bad", name, evidence, remedy, cost, could)]
    return [Finding("note", "small vocabulary", evidence, remedy, cost, could)]
