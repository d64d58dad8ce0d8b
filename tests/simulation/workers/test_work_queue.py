"""The order of work: the earliest due message first, and one worker at a time for each node."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from edgewire.simulation.workers.work_queue import WorkQueue

WORKERS = 3
WORKER = st.integers(0, WORKERS - 1)
DUE = st.integers(-3, 3) | st.just(float("inf"))
# A sequence of events: a message to a node is due at a time; a worker takes a message; a worker
# answers its first message, and keeps the node's state or not; a worker dies.
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 4), DUE),
        st.tuples(st.just("take"), WORKER),
        st.tuples(st.just("take"), WORKER),
        st.tuples(st.just("answer"), WORKER, st.booleans()),
        st.tuples(st.just("die"), WORKER),
    ),
    max_size=60,
)


class Watched:
    """A queue, and the same queue as plain lists; each `take` compares the two."""

    def __init__(self):
        self.queue = WorkQueue(WORKERS)
        self.number = 0
        self.waiting = []  # (due, number, node), in order of arrival
        self.at_work = [[] for _ in range(WORKERS)]
        self.state = {}  # node -> worker
        self.home = {}  # node with messages under way -> the worker that took the first of them

    def put(self, node, due):
        given, taken = due, [entry for entries in self.at_work for entry in entries]
        due = max([due, *(d for d, _, n in self.waiting + taken if n == node)])
        metadata = SimpleNamespace(dst_node_id=node)
        message = SimpleNamespace(metadata=metadata, entry=(due, self.number, node))
        self.queue.put(message, given)
        self.waiting.append(message.entry)
        self.number += 1

    def may_serve(self, worker, node):
        return self.state.get(node, self.home.get(node, worker)) == worker

    def take(self, worker):
        message = self.queue.take(worker)
        possible = [entry for entry in self.waiting if self.may_serve(worker, entry[2])]
        assert (message and message.entry) == min(possible, default=None)
        if message:
            self.waiting.remove(message.entry)
            self.at_work[worker].append(message.entry)
            self.home.setdefault(message.entry[2], worker)

    def answer(self, worker, has_state):
        if self.at_work[worker]:
            _, _, node = self.at_work[worker].pop(0)
            self.queue.answered(node, has_state)
            if has_state:
                self.state[node] = worker
            self.forget(node)

    def forget(self, node):
        """Forget the worker of a node that has no messages under way."""
        taken = [entry for entries in self.at_work for entry in entries]
        if not any(n == node for _, _, n in self.waiting + taken):
            self.home.pop(node, None)

    def die(self, worker):
        metadata = [SimpleNamespace(dst_node_id=node) for _, _, node in self.at_work[worker]]
        self.queue.died(worker, [SimpleNamespace(metadata=m) for m in metadata])
        self.at_work[worker] = []
        self.state = {node: home for node, home in self.state.items() if home != worker}
        self.home = {node: home for node, home in self.home.items() if home != worker}


@given(events=EVENTS)
def test_a_worker_gets_the_first_message_that_it_may_serve(events):
    watched = Watched()
    for name, *arguments in events:
        getattr(watched, name)(*arguments)
        assert len(watched.queue) == len(watched.waiting)
        assert watched.queue.under_way == bool(watched.waiting or any(watched.at_work))
    for worker in [*range(WORKERS)] * (len(watched.waiting) + 1):  # no message is left
        watched.take(worker)
    assert not watched.waiting
