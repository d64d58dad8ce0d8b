"""The ServerApp: federated averaging of float64 arrays."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from sklearnexample.task import get_params, make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the rounds."""
    config = context.run_config
    model = make_model(config["model.penalty"], config["model.local-epochs"])
    result = FedAvg().start(
        grid=grid,
        initial_arrays=ArrayRecord(get_params(model)),
        num_rounds=config["num-server-rounds"],
    )
    arrays = result.arrays.to_numpy_ndarrays()
    accuracy = result.evaluate_metrics_clientapp[config["num-server-rounds"]]["accuracy"]
    print(f"final accuracy {accuracy:.4f}, {arrays[0].dtype}")
    if config["output"]:
        np.savez(config["output"], *arrays)
