"""The ServerApp: federated averaging, and a test of the final model."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from pytorchexample.task import Net, load_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    config = context.run_config
    torch.manual_seed(7)
    strategy = FedAvg(fraction_evaluate=config["fraction-evaluate"])
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=config["num-server-rounds"],
    )
    state = result.arrays.to_torch_state_dict()
    net = Net()
    net.load_state_dict(state)
    loss, accuracy = test(net, load_data(1000, config["batch-size"])[1])
    print(f"final accuracy {accuracy:.4f}, loss {loss:.4f}")
    if config["output"]:
        torch.save(state, config["output"])
