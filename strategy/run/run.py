"""One run on the server: it starts the strategy, evaluates the model, writes the result files."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from torch import Tensor

from edgewire.compression.batchnorm import variances
from edgewire.compression.flower import to_vector
from edgewire.compression.flower.native_tensors import Initial, native_bytes, natives_of
from edgewire.compression.flower.traffic import flower_bytes
from edgewire.compression.layout import Layout
from edgewire.conf.build import (
    flat_model_of,
    local_of,
    objective_of,
    partition_of,
    server_data_of,
    subject_of,
    vectors_of,
)
from edgewire.conf.saved_model import info_of
from edgewire.conf.schema import Config
from edgewire.strategy.factory import asks_nodes, expect_named, made
from edgewire.strategy.lr_schedule import Schedule
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.privacy.ledger import Ledger
from edgewire.strategy.run.node_log import NodeLog
from edgewire.strategy.run.run_log import RunLog
from edgewire.task.datasets import Data, Split
from edgewire.task.errors import TaskError
from edgewire.task.flat_model import expect_numbers
from edgewire.task.rng import IsolatedRng
from edgewire.task.steps import evaluation_batch, summed
from edgewire.task.tensors import count, mapped

OWN = ("drift", "staleness", "prediction_error")  # metrics that only some strategies have
log = logging.getLogger("edgewire")


class Run:
    """Starts a run's strategy on the server, evaluates the model, and writes the result files."""

    ledger: Ledger | None = None  # of a run with differential privacy, whose nodes send no losses

    def __init__(self, config: Config, grid: OrderedGrid, records: RunLog, nodes: NodeLog) -> None:
        self.config, self.grid, self.records, self.nodes = config, grid, records, nodes
        self.data = server_data_of(config)
        if config.personal:  # without the nodes' layers there is nothing to test
            self.data = replace(self.data, test=Split(torch.empty(0)))
        self.model = flat_model_of(config, self.data)
        self.strategy = made(config, self.data)
        self.objective = objective_of(config)
        records.info = info_of(config, self.data)
        self.schedule = Schedule(config.schedule, config.lr, self.objective)
        self.train_config = ConfigRecord({"lr": self.schedule.lr})
        test = self.data.test
        self.test = self.data.prepared(test.inputs, config.device) if len(test) else test.inputs
        self.targets = mapped(lambda tensor: tensor.to(config.device), test.targets)
        names, shapes = self.model.names, self.model.shapes
        self.layout = Layout(names, shapes, ("float32",) * len(names))
        self.variances = variances(self.layout)
        self.sums: dict[str, Any] | None = None  # of the last evaluation here
        self.stepped = 0  # rounds that the learning rate's schedule has counted
        self.nodes.name_places(names_of(config, self.data))
        self.newest: ArrayRecord | None = None  # the last round's model, if it was not evaluated
        expect_numbers(self.model.module)
        if not self.model.num_parameters:
            raise TaskError(f"model={config.model.name}: no parameter is to be trained")
        self.initial = ArrayRecord(self.model.state_dict())  # before training
        vectors, own = vectors_of(config, local_of(config), self.layout), self.model.natives()
        self.natives = {**own, **vectors.zeros}  # the tensors that are sent in their own dtype
        initial = Initial(own, self.model.frozen, vectors)
        self.strategy.initial = initial if self.natives else None
        if getattr(self.strategy, "sends_models", True):
            expect_named(config, self.layout)
            grid.follow(flower_bytes(self.initial) + native_bytes(self.strategy.initial))
        if not count(self.test):
            held = "of what the nodes hold back (dataset.holdout)"
            where = held if asks_nodes(self.strategy) else "not measured"
            why = "no data at the server to test on"
            if config.personal:
                why = "each node evaluates the model with its own personal layers"
            log.warning("%s: %s is %s", why, self.objective.main.name, where)

    def start(self) -> None:
        """Run the strategy, which calls `round_done` after every round."""
        self.strategy.start(
            self.grid,
            self.initial,
            num_rounds=self.config.rounds,
            timeout=self.config.timeout,
            train_config=self.train_config,
            evaluate_fn=self.round_done,
        )

    def round_done(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Evaluate the model after a round, log the round, and set the next learning rate.

        The round becomes a row in `history.jsonl`. `server_round`: the round; 0: before the first.
        `arrays`: the model as one flat vector, and its native tensors. Returns the metrics.
        """
        last, main = server_round == self.config.rounds, (self.objective.main.name, "loss")
        metrics, self.newest = MetricRecord(), arrays
        if not count(self.test):
            metrics = MetricRecord({**self._of_nodes(self.objective.names)})
        elif last or server_round % self.config.eval_every == 0:
            metrics = MetricRecord({**self._measure(arrays)})
        trained = self.strategy.train_metrics if server_round else None
        known = trained if self.ledger is None else None
        train_loss = None if known is None else float(known["loss"])
        self.records.add(
            {
                "round": server_round,
                "rounds": self.config.rounds,
                **{name: metrics.get(name) for name in self.objective.names},
                "train_loss": train_loss,
                "lr": self.schedule.lr,
                **{name: trained[name] for name in OWN if trained and name in trained},
                **{f"node_{name}": value for name, value in self._of_nodes(main).items()},
                **self._least_variance(arrays),
                **self.strategy.traffic.as_dict(),
                **getattr(self.strategy, "details", dict)(),  # some strategies have it
                "virtual_seconds": self.grid.virtual_seconds,
            }
        )
        self.nodes.write(server_round, self.strategy.failed_nodes)
        if self.records.due:
            self.show(arrays)
            self.records.keep(self.weights())
        values = {**metrics, "train_loss": train_loss}
        value = cast(float | None, values.get(self.schedule.metric))
        self.schedule.step(value, server_round - self.stepped)
        self.stepped = server_round
        self.train_config["lr"] = self.schedule.lr
        return metrics

    def show(self, arrays: ArrayRecord) -> None:
        """Load a model into the PyTorch module, for an evaluation or for `weights`."""
        self.natives = natives_of(arrays)
        self.model.load(to_vector(arrays), self.natives)

    def weights(self) -> dict[str, Tensor]:
        """Return the state dict of the model that `show` loaded."""
        self.model.reset(self.natives)  # an evaluation may have changed buffers
        found: dict[str, Tensor] = self.model.module.state_dict()
        return found

    def _measure(self, arrays: ArrayRecord) -> dict[str, float]:
        self.newest = None
        self.show(arrays)
        with IsolatedRng(self.model.state.device, self.config.seed):  # some models use randomness
            self.sums = summed(
                self.model.module,
                self.objective,
                self.test,
                self.targets,
                evaluation_batch(self.objective, self.config.batch_size),
                between=self.grid.tend,
            )
        return self.objective.defined(self.sums, count(self.test))

    def _facts(self) -> dict[str, Any]:
        """Return what the last evaluation tells beside its metrics, and the classes' names."""
        data = self.data
        names = data.class_names or [str(number) for number in range(data.classes)]
        sums, own = self.sums or self.strategy.evaluated, bool(count(self.test))
        facts = self.objective.facts(sums, self.targets if own else (), names) if sums else {}
        return {"class_names": list(names), **facts}

    def _of_nodes(self, names: Iterable[str]) -> dict[str, float]:
        """Return those of the named metrics that the nodes' last evaluation has measured."""
        measured = self.strategy.evaluate_metrics or MetricRecord()
        return {name: cast(float, measured[name]) for name in names if name in measured}

    def _least_variance(self, arrays: ArrayRecord) -> dict[str, float]:
        """Return the smallest running variance of BatchNorm; {} for a model without BatchNorm."""
        if not self.variances:
            return {}
        vector = to_vector(arrays)
        return {"least_variance": min(float(vector[a:b].min()) for a, b in self.variances)}

    def finish(self, stopped: str | None = None, *, measure: bool = True) -> None:
        """Write the result and the weights of the last round's model, also if a run ends early.

        `stopped`: why the run ended early; None if it did not. `measure`: True to evaluate the last
        round's model if this has not been done.
        """
        if not self.records.last:
            return
        if self.newest is not None and not (measure and count(self.test)):
            self.show(self.newest)
        elif self.newest is not None:
            self.records.measured(self._measure(self.newest))
        traffic = self.strategy.traffic
        done = self.records.last["round"]
        self.nodes.write(done, self.strategy.failed_nodes, end=True)
        self.records.finish(
            {
                "uplink_ratio": traffic.uplink_ratio,
                "downlink_ratio": traffic.downlink_ratio,
                "sparsity": traffic.sparsity,
                **self.grid.comparison,
                **subject_of(self.config, self.data, self.model.num_parameters),
                **({"personal": self.config.personal} if self.config.personal else {}),
                "objective": type(self.objective).__name__,
                "metrics": {each.name: each._asdict() for each in self.objective.metrics},
                **self._facts(),
                "seed": self.config.seed,
                "stopped": stopped,
                "ended": stopped or "finished",
                **traffic.as_dict(),
                **getattr(self.strategy, "outcome", dict)(),
                **(self.ledger.outcome() if self.ledger else {}),
            },
            self.weights(),
            self.model.state,
        )


def names_of(config: Config, data: Data) -> list[str]:
    """Return the names of the nodes by their places, from the groups whose samples they have.

    There are none where the groups have no names, or where the partition is not by groups.
    """
    groups = data.train.groups
    if groups is None or not data.group_names:
        return []
    try:
        partition = partition_of(config, data)
        if not partition.by_group:
            return []
        found = [torch.unique(groups[partition.indices(place)]) for place in range(config.nodes)]
    except TaskError:  # the nodes have data of their own, with other groups
        return []
    more = (f" + {len(each) - 1}" if len(each) > 1 else "" for each in found)
    return [data.group_names[each[0]] + rest for each, rest in zip(found, more, strict=True)]
