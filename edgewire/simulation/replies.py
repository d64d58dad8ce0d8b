"""The replies to a round's messages, as a lazy sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from flwr.app import Message


class Replies(Sequence[Message]):
    """The replies to a round's messages. The sequence reads them from a stream when needed.

    `stream`: the replies, each with the virtual second of its arrival. `arrived`: the arrival of
    the newest reply that was read.
    """

    def __init__(self, stream: Iterator[tuple[float, Message]]) -> None:
        self._stream = stream
        self.arrived = 0.0
        self._here: list[Message] = []

    def __iter__(self) -> Iterator[Message]:
        position = 0
        while position < len(self._here) or self._next():
            yield self._here[position]
            position += 1

    def __len__(self) -> int:
        while self._next():
            pass
        return len(self._here)

    def __getitem__(self, index: Any) -> Any:
        len(self)
        return self._here[index]

    def _next(self) -> bool:
        found = next(self._stream, None)
        if found is not None:
            self.arrived, reply = found
            self._here.append(reply)
        return found is not None
