"""Local training: computes a node's update from the server's model and the node's data."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice, repeat
from math import isfinite

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from flwr.app.typing import MetricRecordValues
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from edgewire.client.batches import Samples
from edgewire.client.node import Node
from edgewire.compression.batchnorm import trained_entries
from edgewire.compression.flower import CompressionMod
from edgewire.compression.flower.headers import EXAMPLES, LOSS, STEPS, TrainConfig
from edgewire.compression.flower.native_tensors import NONE, VECTOR, Arrays, Initial
from edgewire.compression.flower.node.secure import SecureMod
from edgewire.compression.flower.node.state import store_arrays, stored_arrays
from edgewire.compression.flower.records import NO_ARRAYS, values_of
from edgewire.compression.flower.secure_messages import SumOf
from edgewire.compression.layout import Layout
from edgewire.conf.build import (
    data_of,
    device_of,
    flat_model_of,
    local_of,
    objective_of,
    optimizer_of,
    server_optimizer_of,
    share_of,
    steps_of,
    vectors_of,
)
from edgewire.conf.check import codec_of, codecs_of
from edgewire.conf.privacy import SAMPLE
from edgewire.conf.schema import Config
from edgewire.conf.trust import is_local
from edgewire.task.errors import TaskError
from edgewire.task.flat_model import NUMPYS, PERSONAL, to_array
from edgewire.task.local import LocalAlgorithm, LocalRun
from edgewire.task.local.dp_sgd import DpSgd, SampleGradients
from edgewire.task.process import configure_process
from edgewire.task.rng import IsolatedRng, stream_seed
from edgewire.task.steps import Batch, batches, evaluation_batch, summed
from edgewire.task.tensors import count

Vector = NDArray[np.float32]
Metrics = dict[str, MetricRecordValues]
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
STORED = (*NUMPYS, *INTEGERS)  # types of the tensors in a local algorithm's state
LOCAL = "edgewire-local"  # the record in a node's state with the local algorithm's tensors
OWN = "edgewire-personal"  # the record with the personal layers


class Trainer:
    """Model, data and optimiser of one configuration, shared by all nodes of a process.

    Everything that differs between nodes is an argument of the methods. Between calls a trainer
    stores only caches. So results do not depend on which process trains for which node, or in which
    order.
    """

    def __init__(self, config: Config, folder: str | None = None) -> None:
        configure_process()
        self.config = config
        self.device = device_of(config)
        self.data = data_of(config, folder)
        self.flat = flat_model_of(config, self.data)
        self.optimizer = optimizer_of(config, [self.flat.parameters])
        self._step = self.flat.step_of(self.optimizer)
        self.objective = objective_of(config)
        self.local = local_of(config)
        # With privacy=sample: makes a node's random mini-batches and noisy gradients.
        self._private: Callable[[Batch], DpSgd] | None = None
        if (privacy := config.privacy).unit == SAMPLE:
            assert privacy.noise is not None  # `edgewire.conf.rules`
            gradients = SampleGradients(self.flat, self.objective, self.local.precision)
            self._private = partial(
                DpSgd, gradients, rate=privacy.rate, clip=privacy.clip, noise=privacy.noise
            )
        # Then it stands for the loss, which a server expects, and which would tell of the samples.
        self._no_loss = max(self.objective.least, 0.0)
        self.single = not any(isinstance(m, _BatchNorm) for m in self.flat.module.modules())
        self.samples = Samples(config, self.data, folder)
        names = self.flat.names
        self.layout = Layout(names, self.flat.shapes, ("float32",) * len(names))
        self.trained = trained_entries(self.layout)
        vectors = vectors_of(config, self.local, self.layout)
        initial = Initial(self.flat.natives(), vectors=vectors)
        state = to_array(self.flat.state)
        self.uplink = uplink_of(
            config, self.layout, initial, state, LOCAL if self.local.pending else ""
        )
        self._vectors: Arrays = vectors.zeros  # those that the last training reports

    def update(
        self,
        node: Node,
        model: Vector,
        orders: TrainConfig,
        natives: Arrays = NO_ARRAYS,
        state: RecordDict | None = None,
    ) -> tuple[Vector, Metrics]:
        """Return the update that the server's optimiser subtracts from `model`, and metrics.

        The update is float32 (n,), as `model`: a `gradient`, or the model before local steps minus
        the model after them. For BatchNorm's statistics it holds their new values. The next call
        may overwrite it and `natives()`. `orders`: the settings in the server's message. `natives`:
        the model's native tensors by name. `state`: the node's `Context.state`, with the local
        algorithm's tensors and the personal layers.
        """
        if self.config.strategy.get("update", "gradient") == "gradient":
            return self.gradient(node, model, natives, number=orders.number - 1)
        trained, metrics = self.train(node, model, orders, natives, state)
        update: Vector = model - trained
        update[self.trained :] = trained[self.trained :]
        return update, metrics

    def train(
        self,
        node: Node,
        start: Vector,
        orders: TrainConfig,
        natives: Arrays = NO_ARRAYS,
        state: RecordDict | None = None,
    ) -> tuple[Vector, Metrics]:
        """Train from the model `start`, float32 (n,); return the new model and metrics.

        The next call overwrites the new model. Random numbers depend only on (seed, node, number of
        the update). `orders`, `state`: as in `update`. Personal layers stay as they are trained if
        the server does not apply the update, because they depend on nothing at the server.
        """
        flat, optimizer = self.flat, self.optimizer
        samples = self.samples.of(node, held_back=False)
        flat.load(start, natives, self._own(state))
        if not flat.module.training:
            flat.module.train()
        optimizer.state.clear()
        for group in optimizer.param_groups:
            group["lr"] = orders.lr
        generator = self.samples.generator(node, orders.number)
        run = self._local_run(orders, natives, state)
        run.private = self._private(samples) if self._private else None
        found = self.batches(samples, generator, orders.most_steps, run.private)
        with self._layers_draws(node, orders.number):
            loss = self.local.train(run, found)
        _expect_trained(self.local, run, loss)
        if run.private is not None:
            loss = self._no_loss
            flat.reset(natives)  # a buffer that layers have changed tells of the samples
        flat.collect_state()
        if state is not None and (run.state or LOCAL in values_of(state)):
            # `detach`: `to_array` copies a tensor, and shares the memory of a parameter.
            store_arrays(state, LOCAL, {n: to_array(t.detach()) for n, t in run.state.items()})
        if state is not None and flat.keeps:
            own = flat.own()
            # The server refuses a model with NaN; the node must be able to go on, too.
            if np.isfinite(own[PERSONAL]).all():
                store_arrays(state, OWN, own)
        self._vectors = {f"{VECTOR}{n}": to_array(t) for n, t in run.vectors.items()}
        # The mini-batches' losses are float32, and so is their mean: it takes 4 bytes less to send.
        with np.errstate(over="ignore"):
            rounded = float(np.float32(loss))
        metrics: Metrics = {
            LOSS: rounded if np.isfinite(rounded) else loss,
            EXAMPLES: count(samples[0]),
            STEPS: run.steps,
        }
        return flat.state.detach().cpu().numpy(), metrics

    def _local_run(
        self, orders: TrainConfig, natives: Arrays, state: RecordDict | None
    ) -> LocalRun:
        """Return the arguments of the local algorithm for one message."""
        stored = {} if state is None else stored_arrays(state, LOCAL)
        vectors = {name: natives[f"{VECTOR}{name}"] for name in self.local.vectors}
        # The node may have to go back to a pending state, so training must not change its arrays.
        kept = torch.tensor if self.local.pending else torch.as_tensor
        return LocalRun(
            self.flat,
            self.objective,
            self.optimizer,
            self._step,
            orders.lr,
            orders.proximal_mu,
            share_of(self.config),
            {name: kept(a, device=self.device) for name, a in stored.items()},
            {name: torch.tensor(a, device=self.device) for name, a in vectors.items()},
            lost=state is not None and isinstance(values_of(state).get(LOCAL), ConfigRecord),
        )

    def natives(self) -> Arrays:
        """Return the native tensors after a training: the model's, and the local algorithm's."""
        return {**self.flat.natives(), **self._vectors}

    def gradient(
        self, node: Node, model: Vector, natives: Arrays = NO_ARRAYS, *, number: int
    ) -> tuple[Vector, Metrics]:
        """Return the gradient of the node's mini-batch `number` (from 0) at `model`, and metrics.

        It is as in `update`. The mini-batch depends only on (seed, node, number).
        """
        flat = self.flat
        flat.load(model, natives)
        if not flat.module.training:
            flat.module.train()
        if self._private:
            private = self._private(samples := self.samples.of(node, held_back=False))
            with self._layers_draws(node, number):
                noisy = private.gradient(next(private.batches())).numpy()
            flat.reset(natives)  # as in `train`
            return noisy, {LOSS: self._no_loss, EXAMPLES: count(samples[0]), STEPS: 1}
        x, y = self.samples.batch(node, number)
        flat.drop_grad()
        with self._layers_draws(node, number), self.local.precision(flat):
            loss = self.objective.loss(flat.module, x, y)
            loss.backward()  # type: ignore[no-untyped-call]
        metrics: Metrics = {LOSS: loss.item(), EXAMPLES: count(x), STEPS: 1}
        gradient = flat.collect_grad().cpu().numpy()
        if gradient.size < model.size:
            flat.collect_state()
            statistics = flat.state[len(gradient) :].detach().cpu().numpy()
            gradient = np.concatenate([gradient, statistics])
        return gradient, metrics

    def evaluate(
        self,
        node: Node,
        model: Vector,
        natives: Arrays = NO_ARRAYS,
        state: RecordDict | None = None,
    ) -> Metrics:
        """Evaluate a model, float32 (n,), on the node's held-back samples; return sums over them.

        If `dataset.holdout` is 0, evaluate it on all samples of the node. The server adds the sums
        of all nodes, so a metric may be defined there that no node's samples define. The number of
        samples is returned too. `natives`, `state`: as in `update`.
        """
        inputs, targets = self.samples.of(node, held_back=self.config.dataset.holdout > 0)
        self.flat.load(model, natives, self._own(state))
        size = evaluation_batch(self.objective, self.config.batch_size)
        with IsolatedRng(self.device, stream_seed(self.config.seed, node.index)):
            sums = summed(self.flat.module, self.objective, inputs, targets, size)
        return {**sums, EXAMPLES: count(inputs)}

    def _own(self, state: RecordDict | None) -> Arrays:
        """Return the personal layers in a node's state; {} before its first training."""
        return stored_arrays(state, OWN) if state is not None and self.flat.keeps else NO_ARRAYS

    def _layers_draws(self, node: Node, number: int) -> IsolatedRng:
        """Return a context in which layers such as dropout draw from a random stream of their own.

        The stream depends on (seed, node, number) and `Node.secret`. Every step uses this context,
        because a model's modules do not show whether they use random numbers (`F.dropout`,
        `nn.LSTM(dropout=)`).
        """
        seed = stream_seed(self.config.seed, node.index, number)
        return IsolatedRng(self.device, seed ^ node.secret ^ 1)

    def batches(
        self, samples: Batch, generator: torch.Generator, most: int = 0, dp: DpSgd | None = None
    ) -> Iterator[Batch]:
        """Yield shuffled mini-batches: `local_epochs` epochs, or `local_steps` mini-batches.

        `most`: the most steps of the optimiser; 0: no bound. `dp`: draws the mini-batches of a run
        with privacy.
        """
        config = self.config
        limit = config.local_steps if dp is None else steps_of(config)
        epochs = repeat(None) if limit is not None else repeat(None, config.local_epochs)
        size, single = config.batch_size, self.single
        every = (batches(*samples, size, generator, single=single) for _ in epochs)
        most *= self.local.accumulate  # a step of the optimiser takes as many mini-batches
        fewer = most if limit is None else min(limit, most)
        found = chain.from_iterable(every) if dp is None else dp.batches()
        return islice(found, fewer if most else limit)


def _expect_trained(local: LocalAlgorithm, run: LocalRun, loss: float) -> None:
    """Raise `TaskError` in one line for a local algorithm that did not do what it has to do."""
    name = type(local).__name__
    if not isinstance(loss, float | int):
        raise TaskError(f"{name}.train must return the mean loss, a number, not {repr(loss)[:60]}")
    if run.steps < 1:
        raise TaskError(f"{name} took no step: call run.step(), or count run.steps")
    run.flat.expect_in_place()
    for key, value in run.state.items():
        dense = isinstance(value, Tensor) and value.layout == torch.strided
        if not dense or value.dtype not in STORED:
            raise TaskError(
                f"{name}: run.state[{key!r}] must be a dense tensor of float16, float32, float64, "
                f"integers or bools, not {value.dtype if dense else repr(value)[:40]}"
            )
    sizes = {key: (*vector.shape, vector.dtype) for key, vector in run.vectors.items()}
    wanted = dict.fromkeys(local.vectors, (run.flat.num_parameters, torch.float32))
    if sizes != wanted:
        raise TaskError(f"{name} reports the vectors {sizes}, and the run has {wanted}")
    wrong = [key for key, vector in run.vectors.items() if not vector.isfinite().all()]
    if wrong and isfinite(loss):  # a loss that is not finite is reported as a divergence
        raise TaskError(f"{name} reports NaN or infinity in run.vectors[{wrong[0]!r}]")


def uplink_of(
    config: Config,
    layout: Layout,
    initial: Initial = NONE,
    model: Vector | None = None,
    pending: str = "",
) -> CompressionMod | SecureMod:
    """Return the configured `CompressionMod`, which encodes a node's updates, or masks them too.

    `initial`: the native tensors (those outside the float32 vector) at the start of the run.
    `model`: the model before training, float32 (n,), which is copied if the run needs it later.
    `pending`: as in `CompressionMod`.
    """
    codecs, secure = codecs_of(config), config.secure
    mod = CompressionMod(
        codec_of(config),
        receiver=None,
        layout=layout,
        initial=initial,
        seed=config.seed,
        optimizer=server_optimizer_of(config),
        seeded=model.copy() if codecs.from_seed and model is not None else None,
        contextual=codecs.contextual,
        masked=bool(config.strategy.get("mask_received")),
        pending=pending,
    )
    if secure.mode == "none":
        return mod
    local, server = local_of(config), server_optimizer_of(config)
    keeps = local.vectors or not local.pending or local.autocast == "float16"
    if keeps or (server is not None and server.sends_momentum):
        # The server says so itself, unless it is hostile: it could shape what one node alone keeps.
        raise TaskError(f"secure={secure.mode} is for local=plain and updates that are changes")
    return SecureMod(
        mod,
        SumOf.of(mod.codec, layout, secure.mode),
        layout,
        least=secure.least,
        masks=secure.masks,
        simulated=lambda context: is_local(context.run_config),
        # A virtual clock counts steps; else their number would tell how many samples a node has.
        counted=config.local_steps is not None,
    )


_trainers: dict[tuple[int, str | None], Trainer] = {}


def trainer_for(config: Config, folder: str | None = None) -> Trainer:
    """Return this process's trainer for a configuration, cached because building takes seconds."""
    key = (id(config), folder)  # `load_config` returns the same object for the same text
    if key not in _trainers:
        _trainers.clear()
        _trainers[key] = Trainer(config, folder)
    return _trainers[key]
