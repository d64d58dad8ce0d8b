"""Writes checkpoints of a run's strategy, results, grid and nodes; resumes runs from them."""

import json
import math
import time
from dataclasses import asdict, dataclass
from logging import getLogger
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from flwr.app import ArrayRecord

from edgewire.compression.flower import flat_record, to_vector
from edgewire.compression.flower.native_tensors import with_natives
from edgewire.conf.schema import Config, ConfigError
from edgewire.strategy.base import RunStrategy
from edgewire.strategy.run import checkpoint_file
from edgewire.strategy.run.graceful_shutdown import GracefulShutdown
from edgewire.strategy.run.membership import MembershipGrid, RunLineageState
from edgewire.strategy.run.node_log import NodeLogState
from edgewire.strategy.run.run import Run
from edgewire.strategy.run.run_log import RunLogState
from edgewire.strategy.run.serialization import StateError, from_bytes, to_bytes

log = getLogger("edgewire")
PAUSE = 60.0  # seconds from a failed checkpoint to the next attempt
SHARE = 0.02  # the largest share of a run's time that is used for checkpoints
RUN, STRATEGY, GRID, NODES = "run", "strategy", "grid", "nodes"  # parts of a checkpoint
LEDGER = "ledger"  # a part: the bytes of the ledger of privacy
# Options that a resume may change. The files may have moved.
FREE = ("checkpoint_every", "verbose", "engine", "device", "dataset.root", "model.file")


@runtime_checkable
class CheckpointedGrid(Protocol):
    """A grid whose nodes end with this process, so that a checkpoint must hold their states too."""

    def drain(self) -> None:
        """Compute the replies to all unanswered messages."""

    def save(self) -> Any:
        """Return a dataclass with the state of grid and nodes; raises `OSError` on a full disk."""

    def load(self, state: Any) -> None:
        """Resume with a saved state; call `load` before the first message."""


@dataclass
class RunState:
    """The state of a `Run`, as a checkpoint holds it.

    `config`: the run's configuration as JSON. `stepped`: the number of rounds that the learning
    rate's schedule has counted. `losses`: the values that it depends on. `model`: the model of the
    last row in `history.jsonl`: a flat vector, and tensors in their own dtype. `measured`: whether
    this model was evaluated. `nodes`: what each node has done.
    """

    config: str
    stepped: int
    losses: list[float]
    records: RunLogState
    model: ArrayRecord
    measured: bool
    nodes: NodeLogState


class RunCheckpointer:
    """Writes a run's checkpoints into its folder, and resumes a run from one.

    A checkpoint is due after each `checkpoint_every` units, which are rounds, asynchronous updates
    or mini-batches (0 or None: never). It is delayed as long as checkpoints would take more than
    `SHARE` of the run's time. `lasting`: the run's grid, if its nodes end with this process; else
    None. `nodes`: the run's grid, if its nodes continue after this process has ended; else None.
    """

    def __init__(
        self,
        run: Run,
        lasting: CheckpointedGrid | None,
        stopping: GracefulShutdown,
        nodes: MembershipGrid | None = None,
    ) -> None:
        self._run, self._lasting, self._stopping = run, lasting, stopping
        self._nodes, every = nodes, run.config.checkpoint_every
        # A strategy of one's own may have no state that can be saved.
        self._strategy = run.strategy if hasattr(run.strategy, "save") else None
        # None: no checkpoints are written.
        self.folder = run.records.folder if self._strategy and every else None
        self._every, self._done = every or 1, 0
        self._next = -math.inf  # no checkpoint before this value of `time.perf_counter()`
        if self._strategy is not None:
            self._strategy.on_state_complete = self.state_complete

    def state_complete(self) -> None:
        """Write a checkpoint if one is due or a stop is requested; then stop the run if requested.

        The strategy calls this method whenever its state is complete.
        """
        assert self._strategy is not None
        done = self._strategy.done
        due = self.folder is not None and done // self._every > self._done // self._every
        if self._stopping.wanted or (due and time.perf_counter() >= self._next):
            if self.folder is not None and done < self._run.config.rounds:
                self._keep(self.folder, self._strategy, done)
            self._stopping.go()  # a stop may have been requested meanwhile

    def _keep(self, folder: Path, strategy: RunStrategy, done: int) -> None:
        """Write a checkpoint after `done` units.

        If the disk or the memory is full, the previous checkpoint stays, and the next attempt is
        after `PAUSE` seconds: that must not end the run.
        """
        if self._lasting is not None:
            self._lasting.drain()  # not counted as a checkpoint's cost, because the run needs it
        began = time.perf_counter()
        try:
            checkpoint_file.write(folder, self.parts(strategy, done))
        except TypeError as error:  # the state holds something that cannot be saved
            log.warning("no checkpoints of this run: %s", error)
            self.folder = None
        except (OSError, MemoryError) as error:
            why = str(error) or type(error).__name__
            log.warning("no checkpoint could be written, the one before stays: %s", why)
            self._next = time.perf_counter() + PAUSE
        else:
            self._done, now = done, time.perf_counter()
            self._next = now + (now - began) / SHARE
            if self._nodes is not None:
                self._nodes.at_checkpoint(done)

    def parts(self, strategy: RunStrategy, done: int) -> dict[str, bytes]:
        """Return a checkpoint's content after `done` units, as named byte strings."""
        found = {RUN: to_bytes(self._state()), STRATEGY: strategy.save()}
        if self._lasting is not None:
            found[GRID] = to_bytes(self._lasting.save())
        if self._nodes is not None:
            found[NODES] = to_bytes(self._nodes.state(done))
        if self._run.ledger is not None:
            found[LEDGER] = str(self._run.ledger.size).encode()
        return found

    def _state(self) -> RunState:
        run = self._run
        newest = run.newest
        if newest is None:
            newest = with_natives(flat_record(run.model.state.detach().cpu().numpy()), run.natives)
        return RunState(
            config_words(run.config),
            run.stepped,
            run.schedule.losses,
            run.records.save(),
            newest,
            run.newest is None,
            run.nodes.save(),
        )

    def load(self, folder: Path) -> None:
        """Resume the run from the checkpoint in a folder.

        Raises `ConfigError` with a one-line message for a checkpoint that cannot be read, or that
        belongs to another run.
        """
        run, strategy = self._run, self._strategy
        parts = checkpoint_file.read(folder)
        if strategy is None or {RUN, STRATEGY} - set(parts):
            raise ConfigError(f"resume={folder}: it holds no state of this strategy")
        if (GRID in parts) != (self._lasting is not None):
            raise ConfigError(
                f"resume={folder}: it was run on another engine; resume it on that one"
            )
        try:
            state = from_bytes(RunState, parts[RUN])
            expect_same_config(
                folder, run.config, json.loads(state.config), self._lasting is not None
            )
            if run.ledger is not None:
                run.ledger.expect(int(parts[LEDGER]))
            strategy.load(parts[STRATEGY])
            if self._lasting is not None:
                kind: type[Any] = type(self._lasting.save())
                self._lasting.load(from_bytes(kind, parts[GRID]))
            else:
                if self._nodes is not None and NODES in parts:
                    self._nodes.load(from_bytes(RunLineageState, parts[NODES]))
                strategy.abandon(self._nodes.keeping if self._nodes else ())
                if run.config.personal and not (self._nodes and self._nodes.keeping):
                    log.warning(
                        "these nodes (Ray's, or Flower's SuperNodes) keep no state for a resume: "
                        "their personal layers begin anew"
                    )
        except StateError as error:
            raise ConfigError(f"resume={folder}: {error}") from error
        if to_vector(state.model).size != run.model.state.numel():
            raise ConfigError(f"resume={folder}: the checkpoint is of another model")
        run.schedule.load(state.stepped, state.losses)
        run.stepped, run.train_config["lr"] = state.stepped, run.schedule.lr
        run.show(state.model)
        run.newest = state.model  # the run's end measures it again if no round follows
        run.records.load(state.records)
        run.nodes.load(state.nodes)
        self._done = strategy.done


def config_words(config: Config) -> str:
    """Return a configuration as JSON, without the options that a resume may change (`FREE`)."""
    plain = asdict(config)
    for key in FREE:
        group, _, name = key.rpartition(".")
        del (plain[group] if group else plain)[name]
    return json.dumps(plain, sort_keys=True, default=str)


def expect_same_config(folder: Path, config: Config, before: dict[str, Any], nodes: bool) -> None:
    """Raise `ConfigError` if two configurations differ; `nodes`: whether `nodes=` is compared."""
    now = json.loads(config_words(config))
    for key in sorted({*now, *before}):
        if now.get(key) != before.get(key) and (nodes or key != "nodes"):
            raise ConfigError(
                f"resume={folder}: the run has another {key}= there ({before.get(key)}): it goes "
                "on with its own configuration"
            )
