"""Waiting for something to come: who waits, for what, and how the one who brings it wakes them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import TypeVar

Found = TypeVar("Found")


class KeyedCondition:
    """Wakes those who wait for a key; all of it happens in one event loop."""

    def __init__(self) -> None:
        self._waiting: defaultdict[Hashable, list[asyncio.Event]] = defaultdict(list)

    def ring(self, *keys: Hashable) -> None:
        """Wake who waits for one of these; none: wake everybody."""
        for key in keys or list(self._waiting):
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
        """Look until there is something, or `seconds` are over; return it, or None.

        It is looked at once, whenever the key's bell rings, and in between every `at_least_every()`
        seconds. `alone`: only the newest who waits for the key goes on; an older one, whose caller
        may be gone, returns None. So does one that is waiting as the server ends.
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
        except asyncio.CancelledError:  # the server ends: who waits is told that there is nothing
            return None
        finally:
            others.remove(mine)
            if not others:
                self._waiting.pop(key, None)
