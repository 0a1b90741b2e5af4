"""The target in fewer bits as its drafter: its drafts, memory and refusals."""

import pytest

from foreword.draft.self_speculative.base import FEW
from foreword.draft.self_speculative.quantized import QuantizedDrafter
from foreword.errors import InvalidRequest
from grids import NEEDS_C
from running import at_both_heats, engine, finish, outputs, plain, target


@NEEDS_C
@pytest.mark.parametrize(
    ("source", "bytes", "kept"),
    [(None, 0.29, 0.6), ("int4", 0.29, 0.6), ("int8", 0.54, 0.75)],
)
def test_most_draft_tokens_are_accepted(source, bytes, kept):
    model = target("bfloat16")
    drafter = QuantizedDrafter.load(source, model, None)
    got = finish(engine(model, drafter, 3), at_both_heats(24))
    assert outputs(got) == outputs(plain(model, at_both_heats(24)))
    stats = [one.request.stats for one in got]
    assert sum(one.accepted for one in stats) > kept * sum(one.drafted for one in stats)
    assert drafter.model.backend.bytes < bytes * 2 * model.parameters


@NEEDS_C
@pytest.mark.parametrize("chunk", [512, 7])
def test_it_never_reads_a_prompt(chunk):
    drafter = QuantizedDrafter.load("int4", target("bfloat16"), None)
    backend, longest = drafter.model.backend, []
    read, grow = backend.read, backend.grow

    def watched_read(reads):
        longest.extend(len(one.tokens) for one in reads)
        return read(reads)

    def watched_grow(one, ask):
        longest.append(len(one.tokens))
        return grow(one, ask)

    backend.read, backend.grow = watched_read, watched_grow
    loop = engine(target("bfloat16"), drafter, 3, chunk=chunk, slots=4)
    got = finish(loop, at_both_heats(24))
    assert sum(answer.request.stats.accepted for answer in got) > 0
    assert 0 < max(longest) <= max(FEW, 8)


@NEEDS_C
def test_nothing_is_kept_of_a_text_that_ended():
    drafter = QuantizedDrafter.load("int4", target("bfloat16"), None)
    finish(engine(target("bfloat16"), drafter, 3), at_both_heats(24)[:2])
    assert not any(value for value in vars(drafter).values() if isinstance(value, dict))


def test_what_it_cannot_be_made_from_is_refused():
    with pytest.raises(InvalidRequest, match="'int4' or 'int8'"):
        QuantizedDrafter.load("some/folder", target("float32"), None)
    with pytest.raises(InvalidRequest, match="only backend 'native' can"):
        QuantizedDrafter.load(None, target("float32"), None)
