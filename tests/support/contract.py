"""What every drafter must keep; a new method of the registry passes this suite."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product

import torch

from foreword.draft.base import Drafter
from foreword.draft.none import NoDrafter
from foreword.model import Read
from foreword.sampling.streams import NoiseStreams
from foreword.types import Batch, Draft, Request, SamplingParams
from running import (
    DTYPE,
    Answer,
    Case,
    count_accepted,
    emptied,
    engine,
    finish,
    outputs,
    plain,
    prompts,
    target,
)

Make = Callable[[], Drafter]
SHARED = dict(max_tokens=20, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, seed=4, **SHARED)
GREEDY = SamplingParams(temperature=0, seed=0, **SHARED)
FILTERED = SamplingParams(temperature=0.8, top_p=0.9, seed=4, **SHARED)
_texts: dict[tuple[str, tuple[int, ...]], list[tuple[list[int], torch.Tensor]]] = {}
"""Texts that were read, with their hidden states, by dtype and layers."""


def hidden_states(
    tokens: list[int], layers: tuple[int, ...], dtype: str
) -> torch.Tensor:
    """Return the target's hidden states of a text; no prefix is read again."""
    texts = _texts.setdefault((dtype, layers), [])
    for text, hidden in texts:
        if text[: len(tokens)] == tokens:
            return hidden[: len(tokens)]
    model = target(dtype)
    model.open(-7, len(tokens))
    _, hidden = model.read_hidden([Read(-7, 0, tokens, keep=0)], layers)
    model.close(-7)
    texts.append((tokens, hidden))
    return hidden


@dataclass
class Trial:
    """A drafter alone, without the loop."""

    make: Callable[[], Drafter]
    dtype: str = DTYPE

    def __post_init__(self) -> None:
        self.drafter = self.make()
        self._read: dict[Request, int] = {}

    def request(
        self, tokens: tuple[int, ...], params: SamplingParams = SAMPLED
    ) -> Request:
        return Case(tuple(tokens), params).request(target(self.dtype).eos)

    def propose(
        self, sequences: list[Request], nodes: list[int], *, shared: bool = True
    ) -> Draft:
        vocab = target(self.dtype).vocab
        if self.drafter.hidden_layers:
            for sequence in sequences:
                self._hand_over_states(sequence)
        batch = Batch(tuple(sequences), NoiseStreams(vocab, shared=shared))
        draft = self.drafter.propose(batch, nodes)
        check_form(draft, nodes, vocab, wants_probs=not shared)
        return draft

    def _hand_over_states(self, sequence: Request) -> None:
        """Hand over the hidden states of the tokens read, as the engine does."""
        read, known = sequence.tokens[:-1], self._read.get(sequence, 0)
        if len(read) > known:
            hidden = hidden_states(read, self.drafter.hidden_layers, self.dtype)
            self.drafter.on_hidden_states(sequence, known, hidden[known:])
            self._read[sequence] = len(read)


def check_form(
    draft: Draft, nodes: list[int], vocab: int, *, wants_probs: bool = False
) -> None:
    """Shapes, dtypes and ranges of types.Draft."""
    rows, width = len(nodes), draft.nodes
    assert draft.tokens.shape == draft.parents.shape == (rows, width)
    assert draft.count.shape == (rows,)
    assert draft.tokens.dtype == draft.parents.dtype == draft.count.dtype == torch.int64
    count = draft.count.tolist()
    for got, most in zip(count, nodes, strict=True):
        assert 0 <= got <= min(most, width)
    # padding beyond the longest row is scored for nothing
    assert width == max(count, default=0)
    assert bool(((draft.tokens >= 0) & (draft.tokens < vocab)).all())
    order = torch.arange(width)
    assert bool(((draft.parents >= -1) & (draft.parents < order)).all())
    assert not draft.chain or bool((draft.parents == order - 1).all())
    if draft.probs is None:
        return
    assert wants_probs, "distributions are copied and compared for nothing"
    assert draft.probs.shape == (rows, width, vocab)
    for row, used in enumerate(count):
        q = draft.probs[row, :used]
        torch.testing.assert_close(q.sum(-1), torch.ones(used), atol=1e-4, rtol=0)
        drawn = q.gather(1, draft.tokens[row, :used, None])
        assert bool((drawn > 0).all()), "drawn from a distribution that forbids it"


def draft_tokens(draft: Draft) -> list[tuple[list[int], list[int]]]:
    """Tokens and parents in use, row by row."""
    parts = (draft.tokens, draft.parents, draft.count)
    rows = zip(*(part.tolist() for part in parts), strict=True)
    return [(tokens[:used], parents[:used]) for tokens, parents, used in rows]


def keeps_its_form(make: Make, dtype: str = DTYPE) -> None:
    for shared in (True, False):
        trial = Trial(make, dtype)
        pairs = product(prompts(), (SAMPLED, GREEDY))
        sequences = [trial.request(*pair) for pair in pairs]
        for most in (1, 3, 8):
            trial.propose(sequences, [most] * len(sequences), shared=shared)
        mixed = [index % 4 for index in range(len(sequences))]
        trial.propose(sequences, mixed, shared=shared)
        nothing = trial.propose(sequences[:2], [0, 0], shared=shared)
        assert draft_tokens(nothing) == [([], [])] * 2
        trial.propose([trial.request((5,))], [4], shared=shared)


def batch_changes_nothing(make: Make, dtype: str = DTYPE) -> None:
    """A drafter's proposal for one sequence does not depend on the others."""

    def alone_with(prompt: list[int]) -> object:
        trial = Trial(make, dtype)
        return draft_tokens(trial.propose([trial.request(prompt)], [5]))[0]

    alone = [alone_with(prompt) for prompt in prompts()]
    trial = Trial(make, dtype)
    sequences = [trial.request(prompt) for prompt in reversed(prompts())]
    together = draft_tokens(trial.propose(sequences, [5] * len(sequences)))
    assert together == alone[::-1]


def check_as_anew(trial: Trial, one: Request, most: int) -> None:
    """Check that a drafter proposes what a new one would."""
    fresh = Trial(trial.make, trial.dtype)
    found, wanted = (each.propose([one], [most]) for each in (trial, fresh))
    assert draft_tokens(found) == draft_tokens(wanted)


def asking_twice_is_harmless(make: Make, dtype: str = DTYPE) -> None:
    trial = Trial(make, dtype)
    one = trial.request(prompts()[3])
    first = draft_tokens(trial.propose([one], [4]))
    assert draft_tokens(trial.propose([one], [4])) == first
    one.tokens += [first[0][0][0], 7] if first[0][0] else [9, 7]
    check_as_anew(trial, one, 4)


def pauses_are_harmless(make: Make, dtype: str = DTYPE) -> None:
    """Tokens that were committed between two proposals are not missed."""
    trial = Trial(make, dtype)
    one = trial.request(prompts()[3][:12])
    for token in prompts()[3][12:24]:
        trial.propose([one], [3 if token % 3 == 0 else 0])
        one.tokens.append(token)
    check_as_anew(trial, one, 4)


def release_frees(make: Make, dtype: str = DTYPE) -> None:
    """Nothing of a sequence is left, and its id may come again with another text."""
    trial = Trial(make, dtype)
    for _ in range(2):
        first, unknown = trial.request(prompts()[3]), trial.request((5,))
        trial.propose([first], [3])
        trial.drafter.release(first)
        trial.drafter.release(first)
        trial.drafter.release(unknown)
        again = trial.request(prompts()[0])
        again.id = first.id
        check_as_anew(trial, again, 3)
        trial.drafter.release(again)
    held = vars(trial.drafter).values()
    assert not any(value for value in held if isinstance(value, dict | set))


def the_edge_of_the_context_is_respected(make: Make, dtype: str = DTYPE) -> None:
    """The last positions have draft tokens, and nothing is read beyond them."""
    trial = Trial(make, dtype)
    text = (prompts()[3] * 60)[: target(dtype).context - 8]
    if trial.drafter.hidden_layers:  # one read for all steps
        hidden_states([*text, *range(5, 13)], trial.drafter.hidden_layers, dtype)
    one = trial.request(text, SamplingParams(temperature=0, max_tokens=8))
    for step in range(8):
        trial.propose([one], [max(0, 8 - step - 1)])
        one.tokens.append(5 + step)


def the_text_is_unaffected(make: Make, dtype: str = DTYPE) -> None:
    drafter = make()
    loop = engine(target(dtype), drafter, 3, chunk=16, slots=4)
    got = finish(loop, asked((FILTERED,))) + finish(loop, asked((SAMPLED, GREEDY)))
    assert outputs(got) == plain_answers(dtype)
    assert loop.failed is None
    if not isinstance(drafter, NoDrafter):
        for kind in (FILTERED, SAMPLED, GREEDY):
            stats = [one.request.stats for one in got if one.request.params == kind]
            assert sum(one.drafted for one in stats) > 0, f"nothing was drafted: {kind}"
        assert count_accepted(got) > 0


def asked(kinds: tuple[SamplingParams, ...]) -> list[Case]:
    return [Case(prompt, params) for params in kinds for prompt in prompts()[1:4]]


@cache
def plain_answers(dtype: str) -> list[tuple[list[int], str, str | None]]:
    return outputs(plain(target(dtype), asked((FILTERED, SAMPLED, GREEDY))))


def earlier_texts_change_no_text(make: Make, dtype: str = DTYPE) -> None:
    """A second turn, after the first one's pages, and after others that began alike."""
    drafter = make()
    loop = engine(target(dtype), drafter, 3, slots=4)
    emptied(target(dtype))
    first = finish(loop, [Case(text, params) for text, params in conversations()])
    seconds = continued(first)
    got = finish(loop, seconds)
    assert seconds == second_turns(dtype)
    assert outputs(got) == second_answers(dtype)
    assert loop.failed is None
    stats = [one.request.stats for one in got]
    assert all(one.cached >= 128 for one in stats)
    if not isinstance(drafter, NoDrafter):
        assert sum(one.drafted for one in stats) > 0
        assert sum(one.accepted for one in stats) > 0


def giving_way_changes_no_text(make: Make, dtype: str = DTYPE) -> None:
    """Sequences that lose their pages are read again, and go on as before."""
    drafter = make()
    loop = engine(target(dtype), drafter, 3, slots=4, chunk=1024)
    before = target(dtype).cache_tokens
    emptied(target(dtype))
    sequences = [request.request(target(dtype).eos) for request in second_turns(dtype)]
    for sequence in sequences:
        loop.add(sequence)
    loop.step()  # all are read and hold their pages
    try:
        target(dtype).cache_tokens = loop.load.kv_used  # not one page is left
        while not loop.idle:
            loop.step()
    finally:
        target(dtype).cache_tokens = before
    got = [Answer(sequence, list(sequence.unread)) for sequence in sequences]
    assert loop.load.preemptions > 0
    assert outputs(got) == second_answers(dtype)
    assert loop.failed is None
    if not isinstance(drafter, NoDrafter):
        assert sum(one.request.stats.drafted for one in got) > 0
        assert count_accepted(got) > 0


def conversations() -> list[tuple[tuple[int, ...], SamplingParams]]:
    text = prompts()[3] * 9
    return [(text[:120], GREEDY), (text[5:155], SAMPLED), (text[10:150], FILTERED)]


@cache
def second_turns(dtype: str) -> tuple[Case, ...]:
    return continued([answered_alone(Case(*one), dtype) for one in conversations()])


def continued(first: list[Answer]) -> tuple[Case, ...]:
    """Return the second turn after each of these answers."""
    turns = [(*one.request.tokens, *prompts()[2]) for one in first]
    return tuple(
        Case(turn, one.request.params) for turn, one in zip(turns, first, strict=True)
    )


@cache
def second_answers(dtype: str) -> list[tuple[list[int], str, str | None]]:
    return [answered_alone(request, dtype).said for request in second_turns(dtype)]


def answered_alone(request: Case, dtype: str) -> Answer:
    """Decode plainly, without the pages of earlier texts."""
    target(dtype).backend.pool.prefixes.clear()
    return plain(target(dtype), [request])[0]


CONTRACT = (
    keeps_its_form,
    batch_changes_nothing,
    asking_twice_is_harmless,
    pauses_are_harmless,
    release_frees,
    the_edge_of_the_context_is_respected,
)
CONTRACT_IN_THE_LOOP = (
    the_text_is_unaffected,
    earlier_texts_change_no_text,
    giving_way_changes_no_text,
)
