"""What every engine is asked to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .clock import Ideal, Network

if TYPE_CHECKING:  # who only asks for PLACE need not wait for Flower
    from flwr.app import Context
    from flwr.serverapp import Grid

    from .workers.node_host import Answering

PLACE = "superlink.json"  # in `folder`, of a run that a SuperLink has, and that has not ended


@dataclass(frozen=True)
class Job:
    """One run: where the app lies, its Flower `run_config`, how many nodes, and their network.

    `folder`: where log files may go. `only_virtual`: what of the network takes a virtual clock, and
    what to give in its place, `device`: where the nodes compute, `verbose`: whether to show logs;
    for engines to refuse what they cannot honour.
    `server_app` and `client_app` are references as in
    pyproject.toml's `tool.flwr.app.components`; within one machine they may be the apps themselves.
    """

    app_dir: Path
    run_config: dict[str, Any]
    nodes: int
    folder: Path
    seed: int = 0
    network: Network = field(default_factory=Ideal)
    server_app: str | Callable[[Grid, Context], None] = "strategy.app:app"
    client_app: str | Answering = "client.app:app"
    only_virtual: str = ""
    device: str = "cpu"
    verbose: bool = False
