"""Each schedule keeps its guarantees for every order of replies."""

from collections import Counter, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.pipeline.server.schedule import Flow, PipelineSchedule

segments, batches = st.integers(1, 5), st.integers(1, 12)


def scheduled(flow, count, total, synthetic=False):
    return PipelineSchedule(flow, synthetic, count, total, [], [])


def run(flow, count, choose, check=lambda log, under_way: None):
    """Reply to tasks and return the log, a list of ("sent" or "answered", task).

    `choose` draws the segment that replies next; each segment replies to its tasks in order.
    """
    queues, log = [deque() for _ in range(count)], []
    while not flow.finished:
        for task in flow.ready():
            queues[task.segment].append(task)
            log.append(("sent", task))
        busy = [queue for queue in queues if queue]
        assert busy, "nothing is under way, and it is not finished"
        check(log, [len(queue) for queue in queues])
        task = choose(busy).popleft()
        flow.answered(task)
        log.append(("answered", task))
    return log


def drawn(data):
    return lambda busy: busy[data.draw(st.integers(0, len(busy) - 1))]


@pytest.mark.parametrize("schedule", ["sequential", "pipeline", "async"])
@given(
    count=segments, total=batches, each=st.integers(1, 4), queue=st.integers(1, 3), data=st.data()
)
def test_every_segment_has_every_mini_batch_once_after_the_one_before(
    schedule, count, total, each, queue, data
):
    def check(log, under_way):
        if schedule == "sequential":
            assert sum(under_way) == 1
        assert max(under_way) <= (queue if schedule == "async" else 1)
        sent = Counter(t.segment for what, t in log if what == "sent")
        done = Counter(t.segment for what, t in log if what == "answered")
        assert all(sent[s] - done[s + 1] <= 2 * queue for s in range(count - 1))  # not far ahead

    log = run(
        scheduled(Flow(schedule, queue, each), count, total, synthetic=True),
        count,
        drawn(data),
        check,
    )
    expected = [(start, min(each, total - start)) for start in range(0, total, each)]
    for segment in range(count):
        mine = [(t.batch, t.batches) for what, t in log if what == "sent" and t.segment == segment]
        assert mine == expected
    answered = set()
    for what, task in log:
        if what == "answered":
            answered.add((task.segment, task.batch))
        elif task.segment:
            assert (task.segment - 1, task.batch) in answered


def test_a_pipeline_keeps_all_segments_at_work():
    flow, beats = scheduled(Flow(queue=1), 3, 5, synthetic=True), []
    while not flow.finished:
        beat = list(flow.ready())
        beats.append([(task.segment, task.batch) for task in beat])
        for task in beat:
            flow.answered(task)
    assert beats[2] == [(0, 2), (1, 1), (2, 0)]
    assert len(beats) == 5 + 2


@pytest.mark.parametrize("schedule", ["sequential", "pipeline"])
@given(count=st.integers(2, 5), total=st.integers(1, 5), micros=st.integers(1, 4), data=st.data())
def test_backpropagation_sees_the_same_weights_in_a_mini_batch(
    schedule, count, total, micros, data
):
    flow = Flow(schedule, micro_batches=micros)
    log = run(scheduled(flow, count, total), count, drawn(data))
    for segment in range(count):
        sent = [t for what, t in log if what == "sent" and t.segment == segment]
        ends = segment == count - 1
        per_batch = micros if ends else 2 * micros
        assert len(sent) == total * per_batch
        for batch in range(total):  # a node works in the order of sending
            mine = sent[batch * per_batch : (batch + 1) * per_batch]
            assert {t.batch for t in mine} == {batch}
            assert [t.micro for t in mine if t.phase == "forward"] == list(range(micros))
            assert [t.steps for t in mine] == [False] * (per_batch - 1) + [True]
    order = {(what, task): i for i, (what, task) in enumerate(log)}
    for what, task in log:
        if what == "sent" and task.phase == "backward":
            after = next(
                t
                for w, t in log
                if w == "answered"
                and (t.segment, t.batch, t.micro) == (task.segment + 1, task.batch, task.micro)
                and (t.phase == "backward" or t.segment == count - 1)
            )
            assert order["answered", after] < order["sent", task]


def test_in_sequence_one_mini_batch_ends_before_the_next():
    flow = scheduled(Flow("sequential"), 3, 4)
    log = run(flow, 3, lambda busy: busy[0])
    assert [task.batch for _, task in log] == sorted(task.batch for _, task in log)
