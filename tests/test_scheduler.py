"""Who runs, and how much of a prompt is read."""

from hypothesis import given, settings
from hypothesis import strategies as st

from foreword.engine.scheduler import FAIR, Scheduler
from foreword.types import Request, SamplingParams


def request(length: int, id: int = 0) -> Request:
    return Request(id, list(range(length)), length, SamplingParams(), seed=0)


def test_first_come_first_served_within_the_slots():
    scheduler = Scheduler(slots=2)
    first, second, third = (request(3, place) for place in range(3))
    for one in (first, second, third):
        scheduler.add(one)
    assert [turn.request.id for turn in scheduler.next()] == [0, 1]
    scheduler.retire(first)
    assert [turn.request.id for turn in scheduler.next()] == [1, 2]


def test_a_long_prompt_is_read_beside_the_others_decoding():
    scheduler = Scheduler(chunk=8)
    writer, reader = request(5, 1), request(20, 2)
    writer.cached = 4
    scheduler.add(writer)
    scheduler.add(reader)
    for expected in ([8], [], [8], [4]):
        turns = scheduler.next()
        scheduler.share.measure(1.0, sum(turn.read for turn in turns[1:]))
        assert (turns[0].request, turns[0].read, turns[0].writes) == (writer, 1, True)
        assert [turn.read for turn in turns[1:]] == expected
        assert [turn.writes for turn in turns[1:]] == [expected == [4]] * len(expected)
        reader.cached += sum(expected)


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
    st.integers(1, 4),
    st.integers(1, 9),
)
def test_every_prompt_is_read_once_and_no_round_exceeds_its_limits(
    lengths, slots, chunk
):
    scheduler = Scheduler(slots=slots, chunk=chunk)
    requests = [request(length, place) for place, length in enumerate(lengths)]
    for one in requests:
        scheduler.add(one)
    for _ in range(sum(lengths) + len(lengths)):
        turns = scheduler.next()
        if not turns:
            break
        assert len(turns) <= slots
        assert (
            sum(turn.read for turn in turns if len(turn.request.pending) > 1) <= chunk
        )
        for turn in turns:
            turn.request.cached += turn.read
            if turn.request.cached == len(turn.request.tokens):
                scheduler.retire(turn.request)
    assert scheduler.idle
    assert [one.cached for one in requests] == lengths


def prior(id: int, priority: int) -> Request:
    return Request(id, [1, 2], 2, SamplingParams(priority=priority), seed=0)


def test_best_priority_starts_first_and_first_to_come_among_equals():
    scheduler = Scheduler(slots=1)
    for one in (prior(0, 1), prior(1, 0), prior(2, 0), prior(3, -1)):
        scheduler.add(one)
    order = []
    while not scheduler.idle:
        (turn,) = scheduler.next()
        order.append(turn.request.id)
        scheduler.retire(turn.request)
    assert order == [3, 1, 2, 0]


def test_one_of_bad_priority_starts_though_better_ones_keep_coming():
    scheduler, patient = Scheduler(slots=1), prior(0, 9)
    scheduler.add(patient)
    for number in range(1, 2 * FAIR):
        scheduler.add(prior(number, 0))
        (turn,) = scheduler.next()
        scheduler.retire(turn.request)
        if turn.request is patient:
            break
    assert number == FAIR
    assert patient not in scheduler.waiting


def test_last_of_the_worst_priority_is_preempted():
    scheduler = Scheduler(slots=3)
    for one in (prior(0, 0), prior(1, 5), prior(2, 5)):
        scheduler.add(one)
    scheduler.next()
    scheduler.add(prior(3, 5))
    assert scheduler.preempt().id == 2
    assert [one.id for one in scheduler.running] == [0, 1]
    assert [turn.request.id for turn in scheduler.next()] == [0, 1, 2]


def test_nothing_starts_before_first_of_queue_that_is_not_admitted():
    scheduler, begun = Scheduler(slots=2), []
    for number in range(3):
        scheduler.add(prior(number, 0))
    assert scheduler.next(lambda one: one.id != 0, begun.append) == []
    assert [
        turn.request.id for turn in scheduler.next(lambda _: True, begun.append)
    ] == [0, 1]
    assert [one.id for one in begun] == [0, 1]


def test_one_that_was_given_up_while_it_waited_never_runs():
    scheduler = Scheduler(slots=1)
    first, second = request(2, 1), request(2, 2)
    scheduler.add(first)
    scheduler.add(second)
    scheduler.next()
    scheduler.retire(second)
    scheduler.retire(second)  # twice does no harm
    scheduler.retire(first)
    assert scheduler.idle
    assert scheduler.next() == []


def shared(prompts: list[int], plain: float, token: float, **options: int):
    """Return the seconds of rounds: `plain` and `token` for each prompt token more."""
    scheduler = Scheduler(**options)
    writer = request(2, -1)
    writer.cached = 1
    scheduler.add(writer)
    for number, length in enumerate(prompts):
        scheduler.add(request(length, number))
    times, order = [], []
    while len(scheduler.running) + len(scheduler.waiting) > 1:
        turns = scheduler.next()
        read = sum(turn.read for turn in turns) - 1
        times.append(plain + token * read)
        scheduler.share.measure(times[-1], read)
        for turn in turns:
            if turn.request is writer:
                continue
            turn.request.cached += turn.read
            if turn.writes:
                order.append(turn.request.id)
                scheduler.retire(turn.request)
    return times, order


@settings(max_examples=20)
@given(
    st.floats(0.005, 1),
    st.floats(0.0001, 0.05),
    st.lists(st.integers(2, 1500), min_size=1, max_size=3),
)
def test_a_stream_beside_prompts_keeps_half_its_pace(plain, token, prompts):
    times, order = shared(prompts, plain, token)
    assert sorted(order) == list(range(len(prompts)))
    # the first shared rounds come before a measurement, and a prompt's last token
    # counts as written
    allowed = max(2 * plain, plain + token) + token * len(prompts)
    assert all(one <= allowed * 1.001 for one in times[6:])
    busy = [one for one in times[6:] if one > plain]
    if len(busy) > 20 and token < plain / 4 and token * 512 > plain:
        assert sum(busy) / len(busy) > 1.5 * plain


def test_reading_takes_the_time_that_it_may():
    times, _ = shared([20_000], 0.05, 0.001, read_ms=200)
    assert max(times[8:]) <= 0.2501
    assert sum(times[8:]) / len(times[8:]) > 0.2


def test_of_several_prompts_the_short_one_ends_first_and_the_long_one_goes_on():
    _, order = shared([20_000, 300, 40], 0.05, 0.001)
    assert order == [2, 1, 0]
    scheduler = Scheduler(chunk=8)
    long = request(1000, 0)
    scheduler.add(long)
    for number in range(1, 60):  # short prompts keep coming
        scheduler.add(request(8, number))
        for turn in scheduler.next():
            turn.request.cached += turn.read
            if turn.writes:
                scheduler.retire(turn.request)
    assert long.cached >= 8 * 20
