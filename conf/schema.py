"""Types of every configuration key, so that a wrong name or value is refused by its name.

Groups with fixed keys are dataclasses here. Groups whose keys belong to a class elsewhere
(`strategy`, `partition`, `optimizer`, `schedule`, `engine`) name it as `_target_`; their keys
are checked against that class's own signature (`conf.check`). The keys of `compression` are
the union of the options of every registered method.
"""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import II, MISSING

from compression.registry import option_fields

WAITING = ("none", "uniform", "exponential", "fixed")
FOREVER = 1e9  # seconds: the `timeout` of who does not want one


class ConfigError(ValueError):
    """The user's own mistake in the configuration: one line that says what to do."""

    one_line = True  # all that there is to say: who logs it leaves the traceback out


def at_least(minimum: float, default: Any) -> Any:
    """Declare a field of a default and a smallest allowed value (checked by `conf.check`)."""
    return field(default=default, metadata={"at_least": minimum})


def from_to_below(minimum: float, bound: float, default: Any) -> Any:
    """Declare a field as `at_least` does, and a bound that values must not reach."""
    return field(default=default, metadata={"at_least": minimum, "below": bound})


def above(bound: float, default: Any) -> Any:
    """Declare a field of a default and a bound that values must exceed."""
    return field(default=default, metadata={"above": bound})


@dataclass
class DatasetConfig:
    """Which data, and where it lies (`task.datasets`).

    `classes`: the class folders' names, for devices whose own folder lacks some of them;
    `holdout`: the share of a node's samples kept back from training, for its `evaluate`;
    `validate`: that of the training set that no node gets and that takes the test set's place;
    `per_image`: each image is normalised by its own mean and standard deviation.
    """

    name: str = MISSING
    root: str | None = None
    download: bool = False
    size: int | None = from_to_below(1, 1 << 16, None)
    classes: list[str] | None = None
    holdout: float = from_to_below(0, 1, 0.0)
    validate: float = from_to_below(0, 1, 0.0)
    per_image: bool = False


@dataclass
class ModelConfig:
    """Which model (`task.models`), and the SGD settings that suit it.

    `lr=`, `optimizer.momentum=` and `batch_size=` take their place.
    """

    name: str = MISSING
    lr: float = above(0, 0.05)
    momentum: float = at_least(0, 0.9)
    batch_size: int = at_least(1, 64)


@dataclass
class DeviceClass:
    """A share of the nodes that computes `speed` times as fast as the reference device."""

    share: float = above(0, 1.0)
    speed: float = above(0, 1.0)


@dataclass
class NetworkConfig:
    """Links and devices of the virtual clock. A bandwidth of null is unlimited.

    `up_mbps`, `down_mbps`: Mbit/s of one node's own link; `server_mbps`: of the server's, each way;
    `latency_ms`: one way, milliseconds; `seconds_per_step`: one local step on the reference
    device, seconds; `encoding_seconds`: the same for the encoding of one update; `loss`: the share
    of replies that never arrive, drawn from (run seed, node, how many replies that node has sent),
    which needs a `timeout=`.
    `waiting`: how long a device does other things before it answers: none, fixed, uniform (0 to
    2 T) or exponential, T = `waiting_seconds` in the mean, longer on slower devices. `crash`: the
    probability that a device crashes after a reply; its state is lost, and it is gone for ever
    or for `rejoin_seconds`. `join_seconds`: devices join at moments from 0 to so many. Neither
    crashes nor late joins go with Flower's own strategies.
    """

    up_mbps: float | None = above(0, None)
    down_mbps: float | None = above(0, None)
    server_mbps: float | None = above(0, None)
    latency_ms: float = at_least(0, 0.0)
    seconds_per_step: float = at_least(0, 0.0)
    encoding_seconds: float = at_least(0, 0.0)
    loss: float = from_to_below(0, 1, 0.0)
    waiting: str = field(default="none", metadata={"one_of": WAITING})
    waiting_seconds: float = at_least(0, 1.0)
    crash: float = from_to_below(0, 1, 0.0)
    rejoin_seconds: float | None = above(0, None)
    join_seconds: float = at_least(0, 0.0)
    classes: dict[str, DeviceClass] = field(default_factory=dict)


def _compression_config() -> type:
    """Return a dataclass: the three stages, and every registered method's options, unset."""
    stages: list[tuple[str, Any, Any]] = [
        ("sparsifier", str, "dense"),
        ("quantizer", str, "float32"),
        ("coder", str, "entropy"),
        ("feedback", bool | None, None),
        ("exact", list[str] | None, None),
    ]
    options = [(name, kind | None, None) for name, kind, _ in option_fields()]
    return make_dataclass("CompressionConfig", [*stages, *options])


CompressionConfig = _compression_config()

# `changes`: send what has changed since the version a node has, compressed; else the model whole.
DownlinkConfig = make_dataclass(
    "DownlinkConfig", [("changes", bool, field(default=False))], bases=(CompressionConfig,)
)


@dataclass
class ScreenConfig:
    """What is refused of updates, or made smaller, before a strategy sees them; null: nothing is.

    `refuse`: an update longer than so many times the usual length is left out; `statistics`: so is
    one whose running statistics are so many usual moves away from the other nodes'; `clip`: both
    are shortened to so many times; `weight`: no node weighs more than so many times the usual
    weight; `equal`: all weigh the same, whatever they say.
    """

    refuse: float | None = at_least(1, 100.0)
    statistics: float | None = at_least(1, 5.0)
    clip: float | None = at_least(1, None)
    weight: float | None = at_least(1, 10.0)
    equal: bool = False


@dataclass
class Config:
    """The whole run. Groups first, then the run's own numbers.

    `nodes`: devices that take part; `rounds`: until the end (an asynchronous strategy counts
    `strategy.pushes` in their place); `local_epochs`: passes over a node's data for one update;
    `local_steps`: mini-batches for one update, in place of epochs; `batch_size`: samples of a
    mini-batch; `lr`: the learning rate that a schedule begins with; `seed`: of all that is drawn
    at random; `eval_every`: rounds (or pushes) from one evaluation on the test set to the next;
    `device`: where torch computes, such as cuda; `verbose`: shows our log and Flower's; `timeout`:
    seconds (virtual ones on the local engine) after which a round goes on without the nodes that
    have not answered; an asynchronous server then sends them a message anew.
    `checkpoint_every`: rounds (or pushes, or a cut model's mini-batches) from one checkpoint to the
    next, with which `resume=` goes on; null or 0: none are written. Never more often than takes a
    fiftieth of the run's time.
    """

    algorithm: str = "fedavg"
    strategy: Any = MISSING
    compression: CompressionConfig = field(default_factory=CompressionConfig)  # type: ignore[valid-type]
    downlink: DownlinkConfig = field(default_factory=DownlinkConfig)  # type: ignore[valid-type]
    gradients: CompressionConfig = field(default_factory=CompressionConfig)  # type: ignore[valid-type]
    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    partition: Any = MISSING
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: Any = MISSING
    schedule: Any = MISSING
    network: NetworkConfig = field(default_factory=NetworkConfig)
    engine: Any = MISSING
    screen: ScreenConfig = field(default_factory=ScreenConfig)

    nodes: int = at_least(1, 10)
    rounds: int = at_least(1, 10)
    local_epochs: int = at_least(1, 1)
    local_steps: int | None = at_least(1, None)
    batch_size: int = at_least(1, II("model.batch_size"))
    lr: float = above(0, II("model.lr"))
    seed: int = from_to_below(0, 1 << 32, 0)
    timeout: float = above(0, FOREVER)
    eval_every: int = at_least(1, 1)
    checkpoint_every: int | None = at_least(0, 1)
    device: str = "cpu"
    verbose: bool = False


ConfigStore.instance().store(name="schema", node=Config)
