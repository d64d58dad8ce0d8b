"""Types of every configuration key, so that an error names the wrong key or value.

Groups with fixed keys are dataclasses here. The groups `strategy`, `partition`, `adapter`, `local`,
`objective`, `optimizer`, `schedule` and `engine` name a class as `_target_`; `edgewire.conf.check`
checks their keys against that class's signature. The keys of `compression` are the options of all
registered methods together. Hydra takes any keys in the groups of `group_types`, because a package
of the user's may declare further ones (`packages=`). `edgewire.conf.load` checks these keys after
the packages are imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from functools import cache
from inspect import signature
from logging import getLogger
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import II, MISSING, DictConfig, OmegaConf

from edgewire.compression.make import make_codec
from edgewire.compression.registry import option_fields
from edgewire.compression.screening import Screening
from edgewire.compression.validation import FOREVER
from edgewire.conf.network import Network
from edgewire.conf.option_group import bounded
from edgewire.conf.privacy import Privacy
from edgewire.task.errors import described


class ConfigError(ValueError):
    """A user's error in the configuration. Its message is one line that says what to do.

    `reason`: an error of this machine's code, whose text only this machine shows (`for_others`).
    """

    one_line = True  # it is logged without a traceback

    def __init__(self, line: str, reason: BaseException | None = None) -> None:
        super().__init__(line if reason is None else f"{line}: {described(reason)}")
        self._line, self._reason = line, reason

    def for_others(self) -> ConfigError:
        """Return what another machine may be told; log the text of the reason, if any."""
        if self._reason is None:
            return self
        getLogger("edgewire").error("%s", self)
        line = f"{self._line}: {type(self._reason).__name__}"
        return ConfigError(f"{line}; this machine's own log says more")


@dataclass
class DatasetConfig:
    """The data set and how its images are used (`edgewire.task.datasets`).

    `download`: whether missing files are downloaded; `size`: the side in pixels to which images are
    scaled; null: their own, and 32 for `imagefolder`; `classes`: the names of all classes, for the
    user's own data; a device's own data may lack some of them; `holdout`: the share of a node's
    samples that the node uses for its own evaluation instead of training; `validate`: the share of
    the training set that replaces the test set; no node gets these samples; `fold`: which part of
    this size it is, from 0 on; `per_image`: if true, each image is normalised by its own mean and
    standard deviation; `_target_`: a function that returns `Data`, such as your own. Its arguments
    are further keys of the group (`docs/your-task.md`).
    """

    name: str = ""
    root: str | None = None
    download: bool = False
    size: int | None = bounded(None, at_least=1, below=1 << 16)
    classes: list[str] | None = None
    holdout: float = bounded(0.0, at_least=0, below=1)
    validate: float = bounded(0.0, at_least=0, below=1)
    fold: int = bounded(0, at_least=0)
    per_image: bool = False
    own: dict[str, Any] = field(default_factory=dict)  # `_target_` and its arguments, if given


@dataclass
class ModelConfig:
    """The model (`edgewire.task.models`), and the settings of SGD that suit it.

    These settings are the defaults of `lr`, `optimizer.momentum` and `batch_size`. `file`: a
    safetensors file with the model's weights before training, or a run's folder; `sha256`: its
    SHA-256 in hexadecimal digits. The command computes it, so every machine refuses a file with
    other contents; `new`: patterns of names, such as `[head.*]`, of tensors that are not taken from
    the file; `dtype`: the type in which the model computes. The server stores and averages the
    parameters as float32; `_target_`: your own class or function, which returns an `nn.Module`. Its
    arguments are further keys of the group (`docs/your-task.md`).
    """

    name: str = ""
    lr: float = bounded(0.05, above=0)
    momentum: float = bounded(0.9, at_least=0)
    batch_size: int = bounded(64, at_least=1)
    file: str | None = None
    sha256: str | None = None
    new: list[str] | None = None
    dtype: str = bounded("float32", one_of=("float32", "float16", "bfloat16"))
    own: dict[str, Any] = field(default_factory=dict)  # `_target_` and its arguments, if given


OWN = {"dataset": DatasetConfig, "model": ModelConfig}  # groups that may name a class of the user's


@dataclass
class Secure:
    """Whether the server sees the update of a single node (`edgewire.compression.secure`).

    `mode`: none: it sees each update; bare: it sees the sum of a round's updates, each of which is
    masked, and a round in which a node does not reply is lost; sum: the same, and nodes that drop
    out do not matter as long as two thirds of the nodes reply; `least`: the fewest nodes of a
    round; `masks`: false simulates the same integers and bytes without cryptography, with
    `engine=local` alone, so that experiments are fast. Then the server can see each update.
    """

    mode: str = bounded("none", one_of=("none", "bare", "sum"))
    least: int = bounded(5, at_least=3)
    masks: bool = True


@cache
def _compression_types(options: tuple[tuple[str, type], ...]) -> tuple[type, type]:
    """Return the dataclasses of `compression` and `downlink`; an option's default is None."""
    every = (p for p in signature(make_codec).parameters.values() if p.kind is not p.VAR_KEYWORD)
    types = {"exact": list[str] | None}  # OmegaConf knows no `Sequence`
    stages = [(p.name, types.get(p.name, p.annotation), p.default) for p in every]
    all_options = [(name, kind | None, None) for name, kind in options]
    compression = make_dataclass("CompressionConfig", [*stages, *all_options])
    # `changes`: send the compressed change since the version that a node has, not the whole model.
    changes = ("changes", bool, field(default=False))
    # `from_seed`: nodes make the model before training from `seed`; the server does not send it.
    from_seed = ("from_seed", bool, field(default=False))
    return compression, make_dataclass("DownlinkConfig", [changes, from_seed], bases=(compression,))


def group_types() -> dict[str, type]:
    """Return the dataclasses of the groups whose keys `edgewire.conf.load` checks.

    Those of `compression`, `downlink` and `gradients` have the options of all methods that are
    registered now, also those of imported packages.
    """
    options = tuple((name, kind) for name, kind, _ in option_fields())
    compression, downlink = _compression_types(options)
    return {**OWN, "compression": compression, "downlink": downlink, "gradients": compression}


CompressionConfig = group_types()["compression"]
DownlinkConfig = group_types()["downlink"]


@dataclass
class Config:
    """The configuration of a run: its groups, and the following options, which are in no group.

    `packages`: the names of your own packages, which are imported before anything is looked up;
    `nodes`: the number of devices that take part; `rounds`: the number of rounds. An asynchronous
    strategy runs for `strategy.pushes` replies instead. A model that is divided among nodes is
    trained for `rounds` mini-batches; `local_epochs`: passes over a node's data for one update;
    `local_steps`: mini-batches for one update, in place of `local_epochs`; `batch_size`: samples of
    a mini-batch; `lr`: the learning rate at the start of the run, which `schedule=` changes;
    `seed`: the seed of all random draws; `eval_every`: rounds between two evaluations on the test
    set; `device`: the torch device, such as cuda; `verbose`: if true, show the logs of EdgeWire and
    of Flower; `timeout`: seconds after which a round goes on without the nodes that have not
    replied; an asynchronous server sends these nodes a new message. `engine=local` counts the
    seconds of its virtual clock; `trainable`: patterns of names, such as `["head.*"]`. Only the
    parameters with such a name are trained and sent; null: those that the model itself does not
    freeze; `frozen_eval`: if true, a module of which nothing is trained stays in eval mode: its
    BatchNorm statistics do not change, and its dropout is off. `personal`: patterns of names, such
    as `["head.*"]`, or `batchnorm` for all BatchNorm layers. Each node trains the tensors with such
    a name, keeps them in its own state, and sends them to nobody; null: there are none.
    `checkpoint_every`: rounds between
    two checkpoints, from which `resume=FOLDER` continues a run; null or 0: no checkpoints.
    Checkpoints become rarer if they would take more than a fiftieth of the run's time;
    `compact_records`: if true, the values beside a payload (its header, the learning rate, the
    metrics) are sent in about a third of the bytes; `fidelity`: how much of each update
    `algorithm=edgewire` sends in both directions: low, medium, high, or a number above 0, where
    high is 1 (sparsifier `energy`). More costs bytes and mostly gains accuracy. Methods without
    `energy` ignore it, and the run says so; `stop_on_failure`: if true, a sweep begins no further
    job after one has failed. A run that has diverged does not count as failed here.

    With an asynchronous strategy, `eval_every` and `checkpoint_every` count replies instead of
    rounds. If the model is divided among nodes, they count mini-batches.
    """

    algorithm: str = "fedavg"
    packages: list[str] = field(default_factory=list)
    strategy: Any = MISSING
    compression: Any = field(default_factory=CompressionConfig)
    downlink: Any = field(default_factory=DownlinkConfig)
    gradients: Any = field(default_factory=CompressionConfig)
    dataset: Any = field(default_factory=DatasetConfig)
    partition: Any = MISSING
    model: Any = field(default_factory=ModelConfig)
    adapter: Any = MISSING
    local: Any = MISSING
    objective: Any = MISSING
    optimizer: Any = MISSING
    schedule: Any = MISSING
    network: Network = field(default_factory=Network)
    engine: Any = MISSING
    logger: Any = field(default_factory=dict)
    screen: Screening = field(default_factory=Screening)
    privacy: Privacy = field(default_factory=Privacy)
    secure: Secure = field(default_factory=Secure)

    nodes: int = bounded(10, at_least=1)
    rounds: int = bounded(10, at_least=1)
    local_epochs: int = bounded(1, at_least=1)
    local_steps: int | None = bounded(None, at_least=1)
    trainable: list[str] | None = None
    frozen_eval: bool = True
    personal: Any = None  # a list of names, or one; OmegaConf has no such type
    batch_size: int = bounded(II("model.batch_size"), at_least=1)
    lr: float = bounded(II("model.lr"), above=0)
    seed: int = bounded(0, at_least=0, below=1 << 32)
    timeout: float = bounded(FOREVER, above=0)
    eval_every: int = bounded(1, at_least=1)
    checkpoint_every: int | None = bounded(1, at_least=0)
    compact_records: bool = False
    fidelity: str = "high"
    device: str = "cpu"
    verbose: bool = False
    stop_on_failure: bool = False

    def __post_init__(self) -> None:
        """Make `personal` a list; raises `ValueError` for what is no text and no list of texts."""
        found = [self.personal] if isinstance(self.personal, str) else self.personal
        if not isinstance(found, list | None) or not all(isinstance(e, str) for e in found or ()):
            raise ValueError("personal must be batchnorm or a list of names: personal=[NAME,NAME]")
        self.personal = found or None


@cache
def declared() -> DictConfig:
    """Return all declared keys with types and defaults; `OmegaConf.merge` copies it.

    The groups of `group_types` and `logger` take further keys, also on the command line without a
    `+`.
    """
    schema = OmegaConf.structured(Config)
    for key in (*group_types(), "logger"):
        keys: Any = OmegaConf.to_container(schema[key])
        if key in OWN:
            keys["_target_"] = keys.pop("own") or None
        schema[key] = OmegaConf.create(keys, flags={"struct": False})
    assert isinstance(schema, DictConfig)
    return schema


ConfigStore.instance().store(name="schema", node=declared())
