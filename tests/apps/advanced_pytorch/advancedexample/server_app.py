"""The ServerApp: it uses its own strategy, and tests the model at the server after each round."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from advancedexample.strategy import KeepsTheBest
from advancedexample.task import Net, test, waves

app = ServerApp()


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the model on sine waves that no node trains on."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(net, waves(400, 0))
    return MetricRecord({"loss": loss, "accuracy": accuracy})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    config = context.run_config
    torch.manual_seed(7)
    strategy = KeepsTheBest(
        config["output"], fraction_train=config["fraction-train"], fraction_evaluate=1.0
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=evaluate,
    )
    last = max(result.evaluate_metrics_serverapp)
    right = strategy.confusion.trace() / strategy.confusion.sum()
    accuracy = result.evaluate_metrics_serverapp[last]["accuracy"]
    print(f"final accuracy {accuracy:.4f}, at the devices {right:.4f}, round {last}")
