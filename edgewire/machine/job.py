"""The description of a run that every engine takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewire.conf.network import Network

if TYPE_CHECKING:  # so a module that needs only PLACE does not import Flower
    from flwr.app import Context, Message
    from flwr.serverapp import Grid


# Files in `folder` of an unfinished run: the place of a run at a SuperLink, and the checkpoint.
PLACE, CHECKPOINT = "superlink.json", "checkpoint"


@dataclass(frozen=True)
class Job:
    """One run: the app's folder, its Flower `run_config`, the number of nodes, their network.

    `folder`: the folder for log files. `server_app` and `client_app`: references as in
    pyproject.toml's `tool.flwr.app.components`; within one machine they may be the apps themselves.
    `only_virtual`: the network's settings that need a virtual clock, and what to set instead.
    `device`: the device on which the nodes compute. `verbose`: whether to show logs. `sources`:
    files outside of `app_dir` that belong to the app, by their path in the app's bundle. An engine
    refuses settings that it does not support.
    """

    app_dir: Path
    run_config: dict[str, Any]
    nodes: int
    folder: Path
    seed: int = 0
    network: Network = field(default_factory=Network)
    server_app: str | Callable[[Grid, Context], None] = "edgewire.strategy.app:app"
    client_app: str | Callable[[Message, Context], Message] = "edgewire.client.app:app"
    only_virtual: str = ""
    device: str = "cpu"
    verbose: bool = False
    sources: Mapping[str, Path] = field(default_factory=dict)
