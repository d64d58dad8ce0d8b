"""Nodes fetch a new app at once: `python -m papers.benchmarks.devices.fleet downloads --nodes 200`.

A real server and `run.py` begin a run of the default task. All nodes are light nodes. Each of them
pulls the run's first message and downloads the app, and answers nothing. The result:

* `seconds`: from the first message until every node has the app;
* `longest_get`: seconds of the slowest small request of another client meanwhile;
* `loop_gap`, `loop_cpu`: the longest pause of the server's event loop (module `probed_server`);
* `app_bytes`: the body of one response;
* `run_lives`: whether `run.py` still waits for the replies afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import hashlib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flwr.proto.fab_pb2 import GetFabResponse

from papers.benchmarks.devices.fleet.light_nodes import LightNode, all_online
from papers.benchmarks.devices.fleet.served import Served

ALIVE = 15.0  # seconds for which run.py must go on afterwards


async def fetched(node: LightNode) -> tuple[float, float, bytes]:
    """Wait for a message and download its app; return the two times and the response's body."""
    found = await node.message()
    began = time.monotonic()
    body = await node.app_of(found.messages_list[0].metadata.run_id)
    return began, time.monotonic(), body


def checked(bodies: Sequence[bytes]) -> int:
    """Return the bytes of an app's response. Raises `RuntimeError` if a body is not the app."""
    for body in {bodies[0], bodies[-1]}:
        fab = GetFabResponse.FromString(gzip.decompress(body)).fab
        if hashlib.sha256(fab.content).hexdigest() != fab.hash_str:
            raise RuntimeError("a node has another app")
    sizes = {len(body) for body in bodies}
    if max(sizes) - min(sizes) > 100:
        raise RuntimeError(f"the nodes have bodies of {sorted(sizes)} bytes")
    return max(sizes)


async def downloads(served: Served) -> dict[str, Any]:
    """Bring all nodes online, start a run, and return what the download took."""
    await all_online(served.nodes)
    waiting = [asyncio.create_task(fetched(each)) for each in served.nodes]
    await asyncio.sleep(1)
    with served.watched() as report:
        run = served.run("algorithm=esgd", "rounds=1", "timeout=3000")
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION, timeout=900)
        found = [each.result() for each in done]
        if len(found) < len(waiting):
            raise RuntimeError(f"{len(found)} nodes have the app: {served.said('run.log')[-2000:]}")
    await asyncio.sleep(ALIVE)
    first = min(began for began, _, _ in found)
    return {
        "seconds": round(max(end for _, end, _ in found) - first, 1),
        "slowest_node": round(max(end - began for began, end, _ in found), 1),
        "app_bytes": checked([body for _, _, body in found]),
        **report,
        "run_lives": run.poll() is None,
        "said": served.said("run.log").strip().splitlines()[-1:],
    }


def measured(words: list[str]) -> dict[str, Any]:
    """Return the result of the case with these options."""
    parser = argparse.ArgumentParser(prog="downloads", description=__doc__)
    parser.add_argument("--nodes", type=int, default=200)
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name, Served(Path(name), args.nodes) as served:
        return {"nodes": args.nodes, **asyncio.run(downloads(served))}
