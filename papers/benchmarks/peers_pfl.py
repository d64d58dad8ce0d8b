"""The benchmark's work in pfl (apple/pfl-research), as in pfl's image classification benchmark.

Three settings are in pfl's favour. pfl prints no metrics. The device is set, so pfl does not ask
the driver for it at every batch. pfl uses a node's samples in the stored order, while the plain
loop shuffles them (1 to 2 % of a round).

`peers.pfl` starts one process for each rank. The benchmark talks to rank 0, which informs the other
ranks.
"""

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

os.environ["PFL_PYTORCH_DEVICE"] = "cpu"  # read by pfl

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from torch.nn import functional as F

from edgewire.task.process import configure_process
from papers.benchmarks.peers import LeNet5, Work, make_data
from papers.benchmarks.timing import Pipe, Turns

FOREVER = 10**9


class PflLeNet5(LeNet5):
    """LeNet-5 with the two methods that pfl requires."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross entropy."""
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Return the metrics; pfl calls this only in the first round, whatever the frequency."""
        return {"loss": Weighted(F.cross_entropy(self(x), y, reduction="sum").item(), len(y))}


class TakeTurns(TrainingProcessCallback):  # type: ignore[misc]  # pfl is untyped
    """Pauses training between blocks of rounds, at the same round in every process."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def on_train_begin(self, *, model: Any) -> Any:
        """Wait for the first request."""
        self._turns.lap()
        return Metrics()

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
        """Wait if a block has ended; return whether to stop."""
        return not self._turns.lap(), Metrics()


def make_turns(loss: Callable[[], float]) -> Turns:
    """Return `Turns` for this process: rank 0 gets the benchmark's requests for all ranks."""
    ranks = pytorch_ops.distributed
    pipe = Pipe(loss) if ranks.global_rank == 0 else None

    def receive() -> int:
        rounds = torch.tensor(pipe.receive() if pipe else 0)
        if ranks.world_size > 1:
            torch.distributed.broadcast(rounds, src=0)
        return int(rounds.item())

    return Turns(receive, pipe.report if pipe else lambda _: None)


def main() -> None:
    """Train until the benchmark makes no more requests."""
    warnings.simplefilter("ignore", FutureWarning)  # pfl's use of torch.distributed.reduce_op
    work = Work.from_argument(sys.argv)
    configure_process()
    torch.manual_seed(work.seed)
    np.random.seed(work.seed)  # noqa: NPY002  # pfl draws from NumPy's global state
    images, labels, loss = make_data(work)
    users = {node: [images[node], labels[node]] for node in range(work.nodes)}
    # The sampler that pfl recommends. It draws no node twice in a round.
    sampler = get_user_sampler("minimize_reuse", list(users))
    dataset = FederatedDataset.from_slices(users, sampler)
    module = PflLeNet5()
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=FOREVER,
            evaluation_frequency=FOREVER,
            train_cohort_size=work.cohort,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(
            training_data=dataset, val_data=dataset, postprocessors=[WeightByDatapoints()]
        ),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=work.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[TakeTurns(make_turns(lambda: loss(module)))],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
