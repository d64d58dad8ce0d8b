"""The ledger of a run's privacy: what its nodes release, written down before it is asked for.

The guarantee of a run is about all that has ever been sent, also in rounds that a resumed run
repeats. So the ledger, `privacy.jsonl`, is never cut, unlike `history.jsonl`. A line is on the disk
before the messages are sent that cause what it counts.
"""

import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from edgewire.compression.flower.headers import trains
from edgewire.compression.flower.node_names import called
from edgewire.compression.flower.records import metadata_of
from edgewire.compression.flower.timed_grid import GridWrapper
from edgewire.conf.build import steps_of
from edgewire.conf.privacy import SAMPLE
from edgewire.conf.schema import Config, ConfigError
from edgewire.strategy.privacy.accounting import (
    Mechanism,
    budget_error,
    listed,
    most_steps,
    planned_messages,
    told,
    with_steps,
)
from edgewire.strategy.run.run_log import HISTORY
from edgewire.strategy.run.whole_files import NotWritten
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

    `folder`: the run's folder, whose file goes on. A new ledger begins with that of the run whose
    model this run trains on (`earlier`). The attribute `size` is the file's bytes.

    Raises `ConfigError` without a folder or noise, for a damaged ledger, and for a spent budget.
    """

    def __init__(self, grid: Grid, config: Config, folder: str) -> None:
        super().__init__(grid)
        if not folder or config.privacy.noise is None:
            raise ConfigError(
                "privacy= needs its noise, and a folder for its ledger: `python run.py` finds both"
            )
        self._config, self._each, path = config, steps_of(config), Path(folder) / FILE
        self._own = Mechanism(config.privacy.rate, config.privacy.noise)
        self._unit = config.privacy.unit
        lines, self._before = read(path, self._unit) if path.exists() else earlier(config)
        self._most = most_steps(config.privacy, self._own, self._before)
        if self._most < self._each:
            raise budget_error(config.privacy, self._before)
        self._steps: dict[int, int] = {}  # by node
        self._began = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: FileIO = path.open("ab", buffering=0)
        self.size = self._file.tell()
        if self.size > len(lines):  # a line that was not finished, so nothing was sent
            self._file.truncate(len(lines))
        if not self.size:
            self._write(lines)
        self.size = len(lines)

    def get_node_ids(self) -> Sequence[int]:
        """See `TimedGrid`."""
        found = super().get_node_ids()
        if not self._began:
            self._steps = dict.fromkeys(found, 0)
        return found

    def push_messages(self, messages: Iterable[Message], ttl: float = math.inf) -> Iterable[str]:
        """Write down the steps of these messages, then send them.

        Raises `BudgetSpent` if they would exceed the budget, and `NotWritten` if the file cannot be
        written; then nothing is sent.
        """
        messages = list(messages)
        asked = [metadata_of(each)["_dst_node_id"] for each in messages if trains(each)]
        if asked and self._unit == SAMPLE:
            self._spend(asked)
        return super().push_messages(messages, ttl)

    def count_round(self) -> None:
        """Write down a round of privacy=node, also one without nodes; raises as `push_messages`.

        The line does not name the nodes: epsilon holds for those who do not know them.
        """
        self._spend([EVERY])

    def _spend(self, asked: Sequence[int]) -> None:
        self._began, steps, options = True, dict(self._steps), self._config.privacy
        new = 0 if self.virtual_seconds is not None else max(steps.values(), default=0)
        for node in asked:
            steps[node] = steps.get(node, new) + self._each
        worst = max(steps, key=lambda node: steps[node])
        if steps[worst] > self._most:
            what = "round" if worst == EVERY else f"steps of {called(worst)}"
            raise BudgetSpent(
                f"with the next {what}, epsilon would be above privacy.epsilon={options.epsilon:g}"
            )
        self._steps = steps
        line = {
            "time": round(time.time(), 3),
            "unit": self._unit,
            **({} if asked == [EVERY] else {"nodes": asked}),
            "steps": self._each,
            **self._own._asdict(),
            "clip": options.clip,
            "delta": options.delta,
            "spent": listed(self._spent),
        }
        self._write(f"{json.dumps(line)}\n".encode())

    @property
    def _spent(self) -> dict[Mechanism, int]:
        """The steps so far of the node with the most, with those of earlier runs."""
        return with_steps(self._before, self._own, max(self._steps.values(), default=0))

    def _write(self, lines: bytes) -> None:
        """Append lines, and return when they are on the disk."""
        try:
            if self._file.write(lines) != len(lines):
                raise OSError("the disk is full")
            os.fsync(self._file.fileno())
        except OSError as error:
            why = error.strerror or error
            raise NotWritten(f"{FILE} cannot be written, so nothing is sent: {why}") from error
        self.size += len(lines)

    def expect(self, size: int) -> None:
        """Raise `ConfigError` if the file has fewer bytes than at a checkpoint."""
        if self.size < size:
            raise ConfigError(f"{self._file.name} lacks lines that were there, {CURE}")

    def outcome(self) -> dict[str, Any]:
        """Return what a run's result says of privacy."""
        return {"privacy": told(self._spent, self._config)}


def announced(config: Config, folder: Path) -> str:
    """Return the bound of a run that begins, if all goes as planned, or of one that goes on."""
    if (folder / FILE).exists():
        spent = read(folder / FILE, config.privacy.unit)[1]
        return f"{told(spent, config)['text']} so far"
    own = Mechanism(config.privacy.rate, config.privacy.noise or math.inf)
    steps = planned_messages(config) * steps_of(config)
    return str(told(with_steps(earlier(config)[1], own, steps), config)["text"])


def earlier(config: Config) -> tuple[bytes, dict[Mechanism, int]]:
    """Return what `read` does for the run whose model this run trains on; nothing for other models.

    Raises `ConfigError` for a run without a ledger, which has trained without privacy.
    """
    if config.model.file is None:
        return b"", {}
    folder = Path(file_of(config.model.file)).parent
    if not (folder / FILE).exists() and (folder / HISTORY).exists():
        raise ConfigError(
            f"{folder} holds a run without privacy, whose model may tell all of its samples: if "
            f"they are other samples, copy its {MODEL} to another folder"
        )
    file = folder / FILE
    return read(file, config.privacy.unit) if file.exists() else (b"", {})


def read(path: Path, unit: str = SAMPLE) -> tuple[bytes, dict[Mechanism, int]]:
    """Return a ledger's finished lines, and the steps of the node with the most.

    Raises `ConfigError` for a line that cannot be read, that has fewer steps than the one before,
    or that counts for another unit of privacy.
    """
    spent: dict[Mechanism, int] = {}
    units = {unit}
    try:
        data = path.read_bytes()
        lines = data[: data.rfind(b"\n") + 1]
        for line in lines.splitlines():
            said = json.loads(line)
            units.add(said["unit"])
            now = {Mechanism(float(rate), float(noise)): int(n) for rate, noise, n in said["spent"]}
            if any(now.get(each, 0) < number for each, number in spent.items()):
                raise ValueError("its steps fall")
            spent = now
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged, {CURE}") from error
    if units != {unit}:
        other = min(units - {unit})
        raise ConfigError(
            f"{path} counts for privacy={other}, which does not add up with privacy={unit}: give "
            f"privacy={other}, or another model.file="
        )
    return lines, spent
