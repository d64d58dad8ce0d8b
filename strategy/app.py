"""The ServerApp: from the run's configuration to a trained model and its records."""

from __future__ import annotations

import random
import time

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from compression.flower import Compressed, to_vector
from conf import Config, load_config
from conf.build import data_of, model_of, strategy_of
from strategy.records import Records
from strategy.schedule import Schedule
from task.flat import FlatModel
from task.steps import evaluate, prepare

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configured strategy over the grid's nodes."""
    config = load_config(context.run_config, _wait_for_nodes(grid))
    random.seed(config.seed)  # Flower's strategies sample nodes with Python's global generator
    torch.set_num_threads(1)
    run = Run(config, grid, Records(str(context.run_config.get("output", ""))))
    run.start()
    run.finish()


def _wait_for_nodes(grid: Grid) -> int:
    """Return how many nodes there are, once there are any."""
    while not (count := sum(1 for _ in grid.get_node_ids())):
        time.sleep(0.5)
    return count


class Run:
    """One run on the server: the strategy, the model it measures, the records it keeps."""

    def __init__(self, config: Config, grid: Grid, records: Records) -> None:
        self.config = config
        self.grid = grid
        self.records = records
        self.data = data_of(config)
        self.model = FlatModel(model_of(config, self.data), config.device)
        self.strategy = Compressed(strategy_of(config), flat=True)
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
                **self.strategy.traffic.as_dict(),
                "virtual_seconds": getattr(self.grid, "virtual_seconds", None),
            }
        )
        if server_round:
            self.schedule.step(train_loss)
        self.train_config["lr"] = self.schedule.lr
        return metrics

    def finish(self) -> None:
        """Write the result and the weights of the last round's model."""
        traffic = self.strategy.traffic
        sent = max(traffic.uplink_bytes, 1)
        self.records.finish(
            {
                "uplink_ratio": traffic.uplink_bytes_float32 / sent,
                "parameters": self.model.num_parameters,
                "algorithm": self.config.algorithm,
                "dataset": self.config.dataset.name,
                "model": self.config.model.name,
                "seed": self.config.seed,
            },
            self.model.state_dict(),
        )
