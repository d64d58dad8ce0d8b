"""Federated averaging with its own `start`: it saves the best model, and a log of all rounds."""

import json
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg, Result


class KeepsTheBest(FedAvg):
    """FedAvg with a decaying learning rate; it writes files into `folder` if a folder is given.

    `best.pt` is the model with the highest accuracy in the server's tests; `log.json` holds the
    metrics of all rounds. If these files exist, a run continues from them.
    """

    def __init__(self, folder, **options):
        super().__init__(**options)
        self.folder = Path(folder) if folder else None
        self.log = []

    def configure_train(self, server_round, arrays, config, grid):
        """Halve the learning rate every four rounds."""
        config["lr"] *= 0.5 if server_round % 4 == 0 else 1.0
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round, replies):
        """Add up the nodes' confusion matrices, then aggregate as FedAvg does."""
        replies = list(replies)
        good = [reply.content for reply in replies if not reply.has_error()]
        matrices = [content.pop("confusion")["counts"].numpy() for content in good]
        self.confusion = sum(matrices)
        return super().aggregate_evaluate(server_round, replies)

    def resume(self, arrays):
        """Return the model to start with: the best model of an earlier run, if there is one."""
        if self.folder is None or not (self.folder / "log.json").exists():
            return arrays
        self.log = json.loads((self.folder / "log.json").read_text())
        return ArrayRecord(torch.load(self.folder / "best.pt"))

    def start(
        self,
        grid,
        initial_arrays,
        num_rounds=3,
        timeout=3600,
        train_config=None,
        evaluate_config=None,
        evaluate_fn=None,
    ):
        """Train for `num_rounds` rounds; return a Flower `Result` with these rounds' metrics."""
        arrays, result = self.resume(initial_arrays), Result()
        result.arrays = arrays
        train_config, evaluate_config = train_config or ConfigRecord(), ConfigRecord()
        for number in range(len(self.log) + 1, len(self.log) + num_rounds + 1):
            began = time.perf_counter()
            messages = self.configure_train(number, arrays, train_config, grid)
            replies = grid.send_and_receive(messages, timeout=timeout)
            mean, metrics = self.aggregate_train(number, replies)
            if mean is not None:
                result.arrays = arrays = mean
                result.train_metrics_clientapp[number] = metrics
            messages = self.configure_evaluate(number, arrays, evaluate_config, grid)
            replies = grid.send_and_receive(messages, timeout=timeout)
            metrics = self.aggregate_evaluate(number, replies)
            if metrics is not None:
                result.evaluate_metrics_clientapp[number] = metrics
            tested = evaluate_fn(number, arrays)
            result.evaluate_metrics_serverapp[number] = tested
            self.note(number, arrays, dict(tested), dict(train_config), began)
        return result

    def note(self, number, arrays, tested, config, began):
        """Add a round to the log; save the round's model if it is the best so far."""
        best = max((entry["accuracy"] for entry in self.log), default=-1.0)
        seconds = time.perf_counter() - began
        self.log.append({"round": number, **tested, "lr": config["lr"], "seconds": seconds})
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            if tested["accuracy"] > best:
                torch.save(arrays.to_torch_state_dict(), self.folder / "best.pt")
            (self.folder / "log.json").write_text(json.dumps(self.log))
