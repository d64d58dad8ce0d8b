"""A condition variable with keys, for one asyncio event loop."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import TypeVar

Found = TypeVar("Found")


class KeyedCondition:
    """Wakes coroutines that wait for a key. All calls must be made in one event loop."""

    def __init__(self) -> None:
        self._waiting: defaultdict[Hashable, list[asyncio.Event]] = defaultdict(list)

    def ring(self, key: Hashable) -> None:
        """Wake the coroutines that wait for a key."""
        for event in self._waiting.get(key, ()):
            event.set()

    async def wait_for(
        self,
        key: Hashable,
        look: Callable[[], Awaitable[Found | None]],
        seconds: float,
        at_least_every: Callable[[], float],
        alone: bool = False,
    ) -> Found | None:
        """Call `look` until its result is not None; return the result, or None after `seconds`.

        It calls `look` at once, after each `ring` for the key, and at least every
        `at_least_every()` seconds. `alone`: only the newest call for a key continues. An older call
        returns None, because its client may be gone. All calls return None when the server ends.
        """
        mine, others = asyncio.Event(), self._waiting[key]
        others.append(mine)
        if alone:
            self.ring(key)
        try:
            deadline = asyncio.get_running_loop().time() + seconds
            while not alone or others[-1] is mine:
                mine.clear()
                if (found := await look()) is not None:
                    return found
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    break
                with suppress(TimeoutError):
                    await asyncio.wait_for(mine.wait(), min(left, at_least_every()))
            return None
        except asyncio.CancelledError:  # the server ends: the client gets an empty response
            return None
        finally:
            others.remove(mine)
            if not others:
                self._waiting.pop(key, None)
