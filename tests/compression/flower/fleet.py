"""Fake grids in real time; each has only the methods of Flower's Grid that a test calls."""

from types import SimpleNamespace

STAMPS = {9: "10:00:00.1", 3: "10:00:00.2", 7: "10:00:00.3", 5: "10:00:01.0"}


class Fleet:
    """A grid whose list of nodes grows from call to call."""

    def __init__(self, listings):
        self._listings = listings
        self._asked = 0

    def get_node_ids(self):
        self._asked = min(self._asked + 1, len(self._listings))
        return set(self._listings[self._asked - 1])

    def get_nodes(self):
        return [SimpleNamespace(node_id=n, registered_at=STAMPS[n]) for n in (3, 5, 7, 9)]


class Remote:
    """A grid that has one reply, and returns it from poll number `ready` on."""

    def __init__(self, ready):
        self.ready = ready
        self.polls = []

    def pull_messages(self, message_ids):
        self.polls.append(message_ids)
        return iter(["reply"] if len(self.polls) >= self.ready else [])
