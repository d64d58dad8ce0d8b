"""The ServerApp: its strategy leaves each node its own head."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from bodyexample.strategy import FedBody
from bodyexample.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    config = context.run_config
    torch.manual_seed(7)
    rounds = config["num-server-rounds"]
    result = FedBody(config["together"]).start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=rounds,
    )
    metrics = result.evaluate_metrics_clientapp
    together, alone = metrics[min(config["together"], rounds)], metrics[rounds]
    print(f"final accuracy {alone['eval_acc']:.4f}, together {together['eval_acc']:.4f}")
    if config["output"]:
        torch.save(result.arrays.to_torch_state_dict(), config["output"])
