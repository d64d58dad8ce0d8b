"""The ServerApp: from the run's configuration to a trained model and its records."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import Strategy

from compression import Codec
from compression.flower import Compressed, to_vector
from conf import Config, load_config
from conf.build import data_of, downlink_of, model_of, strategy_of
from strategy.nodes import OrderedGrid, count_nodes
from strategy.records import Records
from strategy.schedule import Schedule
from task.flat import FlatModel
from task.steps import evaluate, prepare

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configured strategy over the grid's nodes."""
    config = load_config(context.run_config, count_nodes(grid))
    torch.set_num_threads(1)
    grid = OrderedGrid(grid)
    run = Run(config, grid, Records(str(context.run_config.get("output", ""))))
    run.start()
    run.finish()


class Federated(Compressed):
    """Any of Flower's strategies, its models as payloads, its draws from (seed, round) alone.

    Flower's strategies sample nodes with Python's global generator, which other threads of a
    process use too: it is set anew right before each round draws.
    """

    def __init__(self, strategy: Strategy, downlink: Codec | None, seed: int) -> None:
        super().__init__(strategy, downlink=downlink, seed=seed, flat=True)
        self._seed = seed

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure training after setting the generator."""
        random.seed(f"{self._seed} {server_round} train")
        return super().configure_train(server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Configure evaluation after setting the generator."""
        random.seed(f"{self._seed} {server_round} evaluate")
        return super().configure_evaluate(server_round, arrays, config, grid)


class Run:
    """One run on the server: the strategy, the model it measures, the records it keeps."""

    def __init__(self, config: Config, grid: OrderedGrid, records: Records) -> None:
        self.config = config
        self.grid = grid
        self.records = records
        self.data = data_of(config)
        self.model = FlatModel(model_of(config, self.data), config.device)
        self.strategy = Federated(strategy_of(config), downlink_of(config), config.seed)
        self.schedule = Schedule(config.schedule, config.lr)
        self.train_config = ConfigRecord({"lr": self.schedule.lr})
        self.test = prepare(self.data.test.images, self.data.mean, self.data.std, config.device)
        self.labels = self.data.test.labels.to(config.device)

    def start(self) -> None:
        """Train: the strategy's rounds, each measured and recorded by `round_done`."""
        self.strategy.start(
            self.grid,
            ArrayRecord(self.model.state_dict()),
            num_rounds=self.config.rounds,
            timeout=self.config.timeout,
            train_config=self.train_config,
            evaluate_fn=self.round_done,
        )

    def round_done(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Measure the model after a round (0: before the first), write the row, set the next lr."""
        vector = to_vector(arrays)
        self.model.load(vector)
        last = server_round == self.config.rounds
        metrics = MetricRecord()
        if last or server_round % self.config.eval_every == 0:
            loss, accuracy = evaluate(self.model.module, self.test, self.labels)
            metrics = MetricRecord({"loss": loss, "accuracy": accuracy})
        trained = self.strategy.train_metrics if server_round else None
        train_loss = None if trained is None else float(trained["loss"])  # type: ignore[arg-type]
        self.records.add(
            {
                "round": server_round,
                "rounds": self.config.rounds,
                "accuracy": metrics.get("accuracy"),
                "loss": metrics.get("loss"),
                "train_loss": train_loss,
                "lr": self.schedule.lr,
                **self._measured_at_nodes(),
                **self.strategy.traffic.as_dict(),
                "virtual_seconds": self.grid.virtual_seconds,
            }
        )
        if server_round:
            self.schedule.step(train_loss)
        self.train_config["lr"] = self.schedule.lr
        return metrics

    def _measured_at_nodes(self) -> dict[str, float]:
        """Return what the nodes' own evaluation gave, if they were asked (fraction_evaluate)."""
        measured = self.strategy.evaluate_metrics
        if measured is None:
            return {}
        return {f"node_{key}": cast(float, measured[key]) for key in ("accuracy", "loss")}

    def finish(self) -> None:
        """Write the result and the weights of the last round's model."""
        traffic = self.strategy.traffic
        up, down = max(traffic.uplink_bytes, 1), max(traffic.downlink_bytes, 1)
        self.records.finish(
            {
                "uplink_ratio": traffic.uplink_bytes_float32 / up,
                "downlink_ratio": traffic.downlink_bytes_float32 / down,
                "parameters": self.model.num_parameters,
                "algorithm": self.config.algorithm,
                "dataset": self.config.dataset.name,
                "model": self.config.model.name,
                "seed": self.config.seed,
            },
            self.model.state_dict(),
        )
