"""Four nodes with random gradients and the real `CompressionMod`, for tests of the server.

Gradients are multiples of 1/8, so their float32 sums are exact.
"""

from weakref import WeakValueDictionary

import numpy as np
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from edgewire.client import training as real
from edgewire.client.node import node_of
from edgewire.compression.flower import to_vector, update_record
from edgewire.compression.flower.headers import TrainConfig
from edgewire.compression.flower.node.state import NodeState, stored_arrays
from edgewire.compression.flower.node_replica import REPLICA
from edgewire.compression.layout import Layout
from edgewire.compression.make import make_codec
from edgewire.conf.build import server_optimizer_of
from edgewire.conf.check import NO_CODECS, Codecs, check_target
from edgewire.conf.schema import CompressionConfig, Config, DownlinkConfig
from edgewire.simulation.clock import VirtualClock
from edgewire.simulation.grid import LocalGrid
from edgewire.strategy.asynchronous import Asynchronous
from edgewire.strategy.synchronous import SparseAveraging
from tests.compression.flower.apps import record_of
from tests.grids import pool_of

NODES = 4
LAYOUT = Layout(
    ("fc.weight", "fc.bias", "bn.running_mean"), ((20, 12), (12,), (6,)), ("float32",) * 3
)
SIZE, TRAINED = 258, 252
SGD = {"_target_": "edgewire.task.optimizers.SGD"}
MOMENTUM = {"_target_": "edgewire.task.optimizers.Momentum", "momentum": 0.5}
ADAM = {"_target_": "edgewire.task.optimizers.Adam", "lazy": True}
AVERAGE = make_codec()  # for a downlink that sends averaged updates


def initial():
    parts = np.split(start(), LAYOUT.offsets[1:-1])
    named = zip(LAYOUT.names, LAYOUT.shapes, parts, strict=True)
    return record_of({name: part.reshape(shape) for name, shape, part in named})


def start():
    return np.linspace(-1, 1, SIZE, dtype=np.float32)


def gradient(node, number):
    draw = np.random.default_rng([node, number])
    return draw.integers(-8, 9, SIZE).astype(np.float32) / 8


def nan(made):
    return made * np.float32(np.nan)


def breaks(made):
    raise RuntimeError("no power")


def always(change, numbers):
    """Return `spoil` for a `Trainer`: all nodes' gradients with these numbers are changed."""
    return {(node, number): change for node in range(1, NODES + 1) for number in numbers}


class Trainer(real.Trainer):
    """A trainer without a model: its gradients are random.

    `spoil` maps (node, message number) to a function that changes this gradient. `steps` is a
    function of (node, message number) that returns the number of training steps. `seeded`: the
    model before training, if the server does not send it.
    """

    layout, trained = LAYOUT, TRAINED

    def __init__(
        self,
        update="gradient",
        optimizer=SGD,
        mask=False,
        spoil=None,
        steps=lambda node, number: node,
        seeded=None,
        **compression,
    ):
        strategy = {"update": update, "optimizer": optimizer, "mask_received": mask}
        downlink = DownlinkConfig(changes=True, from_seed=seeded is not None)
        uplink = CompressionConfig(**compression)
        self.config = Config(strategy=strategy, compression=uplink, downlink=downlink)
        self.optimizer = server_optimizer_of(self.config)
        self.uplink = real.uplink_of(self.config, LAYOUT, model=seeded)
        self.spoil, self.steps = spoil or {}, steps
        self.given, self.models = {}, {}  # both by (node, number)

    def gradient(self, node, model, natives=None, *, number):
        """Return a random gradient and its metrics; store the gradient and the model.

        The keys of `given` and `models` are (node, message number), both counted from 1.
        """
        key = node.index + 1, number + 1
        self.models[key] = model.copy()
        made = gradient(*key)
        if key in self.spoil:
            made = self.spoil[key](made)
        self.given[key] = made
        metrics = {"loss": 1.0 / number if number else 2.0, "num-examples": key[0]}
        return made, {**metrics, "num-steps": self.steps(*key)}

    def train(self, node, model, orders, natives=None, state=None):
        made, metrics = self.gradient(node, model, number=orders.number - 1)
        return np.concatenate([model[:TRAINED] - made[:TRAINED], made[TRAINED:]]), metrics


def app_of(trainer, *mods):
    """Return a ClientApp that uses the trainer; its `mods` see the compressed payloads."""
    app = ClientApp()

    @app.train("step", mods=[*mods, trainer.uplink])
    def step(message, context):
        model, config = to_vector(message.content["arrays"]), message.content["config"]
        update, metrics = trainer.update(node_of(context), model, TrainConfig.of(config))
        metrics = MetricRecord({**metrics, "seconds": 0.0})
        content = RecordDict({"arrays": update_record(update), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def strategy_of(kind, codecs=NO_CODECS, **options):
    """Return a strategy; the configuration sorts `options` into the groups of the strategy."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    return check_target("strategy", {"_target_": name, **options}).made(codecs=codecs)


class Federation:
    """A run that records the model of each round, and the names of the arrays in each message.

    `answers` holds weak references to replies; they show which replies are still in memory.
    """

    def __init__(self, trainer, network=None, nodes=NODES, seed=0, reply=None):
        self.trainer, self.seen, self.models = trainer, {}, []
        self.codec, self.answers = trainer.uplink.codec, WeakValueDictionary()
        self.from_seed = trainer.config.downlink.from_seed

        def watch(message, context, call_next):
            key = node_of(context).index + 1, message.content["config"]["number"]
            self.seen[key] = set(message.content["arrays"])
            answer = call_next(message, context)
            self.answers[key] = answer
            return reply(key, answer) if reply else answer

        self.pool = pool_of(app_of(trainer, watch), nodes)
        self.clock = VirtualClock(network, seed)
        self.grid = LocalGrid(self.pool, nodes, self.clock)

    def run(
        self, rounds=4, timeout=1e9, lr=0.5, after=None, downlink=AVERAGE, change=None, **options
    ):
        """Train synchronously; return the strategy. Call `after` with the number of each round.

        `change` is called with the strategy before the training.
        """
        update = self.trainer.config.strategy["update"]
        options = {"verify_every": 0, "update": update, **options}
        codecs = Codecs(self.codec, downlink, options.pop("seed", 0), self.from_seed)
        strategy = strategy_of(
            SparseAveraging, codecs=codecs, optimizer=self.trainer.optimizer, **options
        )
        if change:
            change(strategy)
        return self._train(strategy, rounds, timeout, lr, after)

    def push(self, pushes, timeout=1e9, lr=0.5, downlink=None, **options):
        """Train asynchronously; return the strategy."""
        options = {"update": self.trainer.config.strategy["update"], **options}
        codecs = Codecs(self.codec, downlink, from_seed=self.from_seed)
        strategy = strategy_of(Asynchronous, codecs=codecs, pushes=pushes, **options)

        return self._train(strategy, 1, timeout, lr)

    def _train(self, strategy, rounds, timeout, lr, after=None):
        self.strategy = strategy

        def each(done, arrays):
            self.models.append(to_vector(arrays).copy())
            if after:
                after(done)
            return MetricRecord({"models": len(self.models)})

        result = strategy.start(
            self.grid, initial(), rounds, timeout, ConfigRecord({"lr": lr}), evaluate_fn=each
        )
        np.testing.assert_array_equal(to_vector(result.arrays), self.models[-1])
        return strategy

    def records(self, node):
        return self.pool.states()[node]

    def state(self, node):
        return NodeState(self.records(node))

    def replica(self, node):
        return stored_arrays(self.records(node), REPLICA)


def by_hand(used, lr=0.5, weight=lambda node: 1.0, share=1.0):
    """Return the models of SGD; `used` lists for each round the nodes whose gradients are averaged.

    Running statistics become (1 - share) times the model's value plus share times the nodes' mean.
    """
    models = [start()]
    for number, nodes in enumerate(used, 1):
        x = models[-1].copy()
        if nodes:
            total = sum(np.float32(weight(node)) * gradient(node, number) for node in nodes)
            mean = total / np.float32(sum(map(weight, nodes)))
            x[:TRAINED] -= np.float32(lr) * mean[:TRAINED]
            x[TRAINED:] = (1 - share) * x[TRAINED:] + share * mean[TRAINED:]
        models.append(x)
    return models


def assert_models(federation, expected):
    """Assert that each round's model equals the expected one, bit for bit."""
    for found, model in zip(federation.models, expected, strict=True):
        assert found.tobytes() == model.tobytes()
