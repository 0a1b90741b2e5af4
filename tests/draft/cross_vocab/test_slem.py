"""Drafting in text: what the draft model reads and writes, in target tokens."""

import pytest

from foreword.draft.cross_vocab.slem import StringMatchDrafter
from foreword.model import Read
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Request, SamplingParams
from grids import slow_case
from other_tokenizers import FAR, NEAR, Foreign, pair
from running import DTYPE, Case, engine, finish, plain, prompts, target, tokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)


def request(text: str, params: SamplingParams = GREEDY) -> Request:
    return Case(tuple(tokenizer()(text)["input_ids"]), params).request(
        target(DTYPE).eos
    )


def draft_tokens(
    drafter: StringMatchDrafter, one: Request, count: int, *, shared: bool = True
) -> list[int]:
    draft = drafter.propose(Batch((one,), NoiseStreams(8192, shared=shared)), [count])
    assert draft.probs is None
    return draft.tokens[0, : int(draft.count[0])].tolist()


@pytest.mark.parametrize("rule", ["match", slow_case("rejection")])
@pytest.mark.parametrize("temperature", [*map(slow_case, (0.0, 0.7)), 1.3])
@pytest.mark.parametrize("how", [NEAR, FAR])
def test_text_is_unchanged_and_draft_tokens_are_accepted(how, temperature, rule):
    params = [
        SamplingParams(temperature=temperature, seed=s, max_tokens=32, ignore_eos=True)
        for s in range(5)
    ]
    asked = [Case(prompt, one) for prompt, one in zip(prompts(), params, strict=True)]
    loop = engine(target(DTYPE), StringMatchDrafter(pair(how, DTYPE)), 3, rule=rule)
    got = finish(loop, asked)
    assert loop.failed is None
    assert sum(answer.request.stats.accepted for answer in got) > 3
    if rule == "match" or temperature == 0:
        assert [answer.said for answer in got] == [
            answer.said for answer in plain(target(DTYPE), asked)
        ]


@pytest.mark.parametrize("how", [NEAR, FAR])
def test_draft_model_reads_text_as_its_own_tokenizer_spells_it(how):
    text = (
        "Rivers carry water from the mountains to the sea, 12 miles away. Ein Fluß "
        "fließt; 你好!"
    )
    drafter, one = StringMatchDrafter(pair(how, DTYPE)), request(text)
    whole, one.tokens = one.tokens, one.tokens[:3]
    for token in whole[3:]:
        draft_tokens(drafter, one, 2)
        one.tokens.append(token)
    draft_tokens(drafter, one, 2)
    telling = drafter._copies[one.id]
    assert pair(how, DTYPE).draft.text(telling.ids) == text.encode()
    assert telling.ids == how.tokenizer()(text)["input_ids"]


def test_special_tokens_are_told_by_role_or_name():
    drafter = StringMatchDrafter(pair(NEAR, DTYPE))
    one = request("<|user|>\nHello<|end|>\n<|assistant|>\n")
    draft_tokens(drafter, one, 1)
    told = NEAR.tokenizer().convert_ids_to_tokens(drafter._copies[one.id].ids)
    assert "".join(told) == "<|user|>ĊHello</s>Ċ<|assistant|>Ċ"


def test_draft_tokens_are_what_draft_model_writes_in_targets_tokens():
    """A draft that lacks half of the tokens needs several for one of the target's."""
    both = pair(FAR, DTYPE)
    drafter = StringMatchDrafter(pair(FAR, DTYPE))
    one = request("Rivers carry water from the mountains to")
    wrote = list(both.draft.follow(b"", both.target.text(one.tokens)))
    start = len(wrote)
    both.model.open(777, 200)
    for _ in range(6):
        wrote.append(int(both.model.read([Read(777, 0, wrote)])[0].argmax()))
    both.model.close(777)
    text = both.draft.text(wrote[start:])
    found = draft_tokens(drafter, one, 6)
    assert found
    assert text.startswith(both.target.text(found[:-1]))
    whole = tokenizer()(tokenizer().decode(one.tokens + found))["input_ids"]
    assert whole == one.tokens + found


def test_end_of_text_ends_draft_tokens_in_targets_own_token():
    """The family's own draft model, ids shuffled: nothing is drafted after its end."""
    asked = "<|user|>\nTranslate to German: It's your fault.<|end|>\n<|assistant|>\n"
    (answer,) = plain(
        target(DTYPE),
        [Case(tuple(tokenizer()(asked)["input_ids"]), SamplingParams(temperature=0))],
    )
    assert answer.tokens[-1] == 0
    drafter = StringMatchDrafter(pair(Foreign(one_in=8192), DTYPE))
    one = answer.request
    said, one.tokens = one.tokens, one.tokens[: one.prompt]
    ends = []
    while len(one.tokens) < len(said):
        found = draft_tokens(drafter, one, 4)
        ends += [found.index(0) == len(found) - 1] if 0 in found else []
        one.tokens = said[: len(one.tokens) + 1]
    assert ends
    assert all(ends)


@pytest.mark.slow
def test_drawn_with_targets_noise_more_draft_tokens_come_true():
    def kept(shared: bool) -> int:
        params = [
            SamplingParams(temperature=1.3, seed=s, max_tokens=24, ignore_eos=True)
            for s in range(10)
        ]
        texts = plain(
            target(DTYPE), [Case(prompts()[s % 5], one) for s, one in enumerate(params)]
        )
        drafter, right = StringMatchDrafter(pair(NEAR, DTYPE)), 0
        for answer in texts:
            one = answer.request
            said, one.tokens = one.tokens, one.tokens[: one.prompt]
            while len(one.tokens) < len(said):
                right += draft_tokens(drafter, one, 1, shared=shared) == [
                    said[len(one.tokens)]
                ]
                one.tokens = said[: len(one.tokens) + 1]
        return right

    assert kept(shared=True) > 1.5 * kept(shared=False)


def test_no_draft_tokens_beyond_the_draft_models_context():
    one = request("a b c d e f g h " * 160)
    assert draft_tokens(StringMatchDrafter(pair(FAR, DTYPE)), one, 3) == []
