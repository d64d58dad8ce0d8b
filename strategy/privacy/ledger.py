"""The ledger of a run's privacy: what its nodes release, written down before it is asked for.

The guarantee of a run is about all that has ever been sent, also in rounds that a resumed run
repeats. So the ledger, `privacy.jsonl`, is never cut, unlike `history.jsonl`.
"""

import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from edgewire.compression.flower.headers import trains
from edgewire.compression.flower.records import metadata_of
from edgewire.compression.flower.timed_grid import GridWrapper
from edgewire.conf.build import steps_of
from edgewire.conf.privacy import SAMPLE
from edgewire.conf.schema import Config, ConfigError
from edgewire.strategy.privacy.accounting import (
    Mechanism,
    Spent,
    epsilon_of,
    most_steps,
    planned_messages,
    told,
)
from edgewire.strategy.run.run_log import HISTORY
from edgewire.strategy.run.whole_files import NotWritten, replace_file
from edgewire.task.model_file import MODEL, file_of

FILE = "privacy.jsonl"
EVERY = 0  # stands for all nodes; no node has this id
CURE = "so what was released is unknown: put it back as it was, or start a new run"


class BudgetSpent(Exception):
    """Ends a run, because its next messages would exceed the privacy budget."""


class Ledger(GridWrapper):
    """A grid that counts the noisy steps of each node, and writes them down before it sends.

    The epsilon of a run is that of the node with the most steps. A node that appears later than the
    first message may be an earlier one with another id, except on a virtual clock. So it counts
    from the steps of the node with the most. With privacy=node, messages do not count, and each
    round is one step (`count_round`).

    `folder`: the run's folder. The attribute `size` is the bytes of the ledger in it. Raises
    `ConfigError` without a folder or noise, and as `earlier`.
    """

    def __init__(self, grid: Grid, config: Config, folder: str) -> None:
        super().__init__(grid)
        if not folder or config.privacy.noise is None:
            raise ConfigError(
                "privacy= needs its noise, and a folder for its ledger: `python run.py` finds both"
            )
        self._config, self._each, self._path = config, steps_of(config), Path(folder) / FILE
        self._own = Mechanism(config.privacy.rate, config.privacy.noise)
        lines, self._before = earlier(config, Path(folder))
        self._most = most_steps(config.privacy, self._own, self._before)
        if self._most < self._each:
            raise ConfigError(
                f"privacy.epsilon={config.privacy.epsilon:g} is not enough for one message by RDP, "
                "which decides: give a larger one, and privacy.noise=null"
            )
        self._steps: dict[int, int] = {}  # by node
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, lines, durable=True)  # without a line that was not finished
        self.size = len(lines)

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> Iterable[str]:
        """Write down the steps of these messages, then send them.

        Raises `BudgetSpent` if they would exceed the budget, and `NotWritten` if the file cannot be
        written; then nothing is sent.
        """
        messages = list(messages)
        asked = [metadata_of(each)["_dst_node_id"] for each in messages if trains(each)]
        if asked and self._config.privacy.unit == SAMPLE:
            self._spend(asked)
        return super().push_messages(messages, ttl)

    def count_round(self) -> None:
        """Write down a round of privacy=node, also one without nodes; raises as `push_messages`.

        The line does not name the nodes: epsilon holds for those who do not know them.
        """
        self._spend([EVERY])

    def _spend(self, asked: Sequence[int]) -> None:
        options, steps = self._config.privacy, self._steps or dict.fromkeys(self.get_node_ids(), 0)
        new = 0 if self.virtual_seconds is not None else max(steps.values(), default=0)
        steps = steps | {node: steps.get(node, new) + self._each for node in asked}
        if max(steps.values()) > self._most:
            raise BudgetSpent(
                f"with more steps, epsilon by RDP would exceed privacy.epsilon={options.epsilon:g}"
            )
        self._steps = steps
        line = {
            "time": round(time.time(), 3),
            **({} if asked == [EVERY] else {"nodes": asked}),
            "steps": self._each,
            **asdict(options),
            "spent": [[*each, number] for each, number in self._spent.items()],
        }
        written = f"{json.dumps(line)}\n".encode()
        try:
            with self._path.open("ab") as file:
                file.write(written)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            why = error.strerror or error
            raise NotWritten(f"{FILE} cannot be written, so nothing is sent: {why}") from error
        self.size += len(written)

    @property
    def _spent(self) -> Spent:
        """The steps so far of the node with the most, with those of earlier runs."""
        return self._before + Counter({self._own: max(self._steps.values(), default=0)})

    def expect(self, size: int) -> None:
        """Raise `ConfigError` if the file has fewer bytes than at a checkpoint."""
        if self.size < size:
            raise ConfigError(f"{self._path} lacks lines that were there, {CURE}")

    def outcome(self) -> dict[str, Any]:
        """Return what a run's result says of privacy."""
        found = told(self._spent, self._config)
        return {"privacy": found, "epsilon": found["epsilon"]}


def announced(config: Config, folder: Path) -> str:
    """Return the bound of a run that begins, if all goes as planned, or of one that goes on."""
    spent, goes_on = earlier(config, folder)[1], (folder / FILE).exists()
    if not goes_on:
        own = Mechanism(config.privacy.rate, config.privacy.noise or math.inf)
        spent = spent + Counter({own: planned_messages(config) * steps_of(config)})
    return f"{told(spent, config)['text']}{' so far' * goes_on}"


def earlier(config: Config, folder: Path | None = None) -> tuple[bytes, Spent]:
    """Return what `read` does for the ledger in a run's folder, with which the run goes on.

    If there is none, it is the ledger of the run whose model this run trains on. Raises
    `ConfigError` as `read`, for a run that has trained without one, and for a spent budget.
    """
    options = config.privacy
    if folder is None or not (folder / FILE).exists():
        if config.model.file is None:
            return b"", Counter()
        folder = Path(file_of(config.model.file)).parent
        if not (folder / FILE).exists() and (folder / HISTORY).exists():
            raise ConfigError(
                f"{folder} holds a run without privacy, whose model may tell all of its samples: "
                f"if they are other samples, copy its {MODEL} to another folder"
            )
    lines, spent = read(folder / FILE, options.unit)
    if options.epsilon and (found := epsilon_of(spent, options.delta)) >= options.epsilon:
        raise ConfigError(
            f"privacy.epsilon={options.epsilon:g} is spent: earlier training has epsilon "
            f"{found:.2f} at delta {options.delta:g} by RDP, which decides; give a larger one, and "
            "privacy.noise=null"
        )
    return lines, spent


def read(path: Path, unit: str = SAMPLE) -> tuple[bytes, Spent]:
    """Return the finished lines of a ledger, if it exists, and the steps of the node with the most.

    Raises `ConfigError` for a line that cannot be read, that has fewer steps than the one before,
    or that counts for another unit of privacy.
    """
    spent, units = Spent(), {unit}
    try:
        data = path.read_bytes() if path.exists() else b""
        lines = data[: data.rfind(b"\n") + 1]
        for line in lines.splitlines():
            said, before = json.loads(line), spent
            units.add(said["unit"])
            spent = Counter({Mechanism(float(q), float(z)): int(n) for q, z, n in said["spent"]})
            if not before <= spent:
                raise ValueError("its steps fall")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged, {CURE}") from error
    for other in units - {unit}:
        raise ConfigError(
            f"{path} counts for privacy={other}, which does not add up with privacy={unit}: give "
            f"privacy={other}, or another model.file="
        )
    return lines, spent
