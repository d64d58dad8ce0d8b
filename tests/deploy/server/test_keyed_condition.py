"""`KeyedCondition`: coroutines that wait for a key are woken."""

import asyncio

from edgewire.deploy.server.keyed_condition import KeyedCondition


async def nothing():
    return None


def test_a_wait_ends_without_a_result_when_the_server_ends():
    async def waits():
        waiting = asyncio.create_task(KeyedCondition().wait_for("key", nothing, 60, lambda: 60))
        await asyncio.sleep(0.01)
        assert waiting.cancel()
        return await waiting

    assert asyncio.run(waits()) is None
