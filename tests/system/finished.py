"""Makes a whole run on the local engine, with a wrapped grid and another kind of `Run`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid

from edgewire.conf.load import load_config
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.run.run import Run
from edgewire.strategy.run.run_log import RunLog
from edgewire.task.objectives.classification import Classification
from tests.local_runs import local_run
from tests.runs import result_of

KEPT = ("accuracy", "client_updates", "failures", "ended")


def finished(
    words: list[str], wrap: Callable[[Grid], Any], kind: Callable[..., Run] = Run
) -> tuple[Any, dict[str, Any]]:
    """Return the wrapped grid of a run with these overrides, and the main values of its result."""
    grids = list[Any]()

    def server_app(grid: Grid, context: Context) -> None:
        grids.append(wrap(grid))
        nodes = json.loads(context.run_config["config"])["nodes"]
        log = RunLog(str(context.run_config["output"]), Classification())
        run = kind(load_config(context.run_config, nodes), OrderedGrid(grids[0]), log)
        run.start()
        run.finish()

    with tempfile.TemporaryDirectory() as folder:
        local_run(Path(folder), *words, server_app=server_app)
        result = result_of(Path(folder))
    return grids[0], {key: result[key] for key in KEPT}
