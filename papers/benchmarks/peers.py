"""The baselines of the engine's benchmark, with the same work: a plain PyTorch loop, and pfl.

    python -m papers.benchmarks.peers        # the baselines alone, as JSON

The plain loop ("bare") is federated averaging with the standard optimizer, one model for all nodes
and tensors in memory. For pfl see `peers_pfl.py`.
"""

import argparse
import importlib.util
import json
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from edgewire.conf.build import data_of, partition_of
from edgewire.conf.load import compose_config, to_config
from edgewire.task.process import configure_process
from papers.benchmarks.timing import Child, compare, take_turns

FOREVER = 1_000_000
PFL_MISSING = (
    "pfl is not installed: uv pip install -e '.[bench]' (Python 3.11 or 3.12), then run this again"
)


@dataclass(frozen=True)
class Work:
    """Federated averaging of LeNet-5, one local epoch of plain SGD, on images of 1x28x28."""

    nodes: int = 1000
    cohort: int = 50
    samples: int = 50
    batch: int = 10
    lr: float = 0.05
    shuffle: bool = True  # whether the plain loop shuffles its samples; pfl does not
    seed: int = 0

    @classmethod
    def from_argument(cls, argv: Sequence[str]) -> "Work":
        """Return the work that the last argument, made by `as_argument`, describes."""
        return cls(**json.loads(argv[-1]))

    def as_argument(self) -> str:
        """Return the work as JSON, for a command line."""
        return json.dumps(asdict(self))


class LeNet5(nn.Module):
    """LeNet-5 with ReLU and max pooling, 61,706 parameters: (N, 1, 28, 28) -> (N, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        x = F.relu(self.fc2(x))
        out: Tensor = self.fc3(x)
        return out


def overrides(work: Work, rounds: int) -> list[str]:
    """Return the command-line overrides that make the application do this work.

    The images are scikit-learn's digits, enlarged to 28 x 28 pixels.
    """
    return [
        "algorithm=fedavg",
        "dataset=digits",
        "dataset.size=28",
        "model=lenet5",
        "partition=sampled",
        f"partition.samples={work.samples}",
        f"nodes={work.nodes}",
        f"strategy.fraction_train={work.cohort / work.nodes}",
        f"batch_size={work.batch}",
        f"lr={work.lr}",
        "optimizer.momentum=0",
        f"rounds={rounds}",
        f"eval_every={FOREVER}",
    ]


def make_data(work: Work) -> tuple[Tensor, Tensor, Callable[[nn.Module], float]]:
    """Return the application's data for this work, and a function that returns a model's test loss.

    The data are all nodes' images, float32 (nodes, samples, 1, 28, 28), and their labels, int64
    (nodes, samples).
    """
    config = to_config(compose_config(overrides(work, 1)))
    data = data_of(config)
    partition = partition_of(config, data)
    places = torch.stack([partition.indices(node) for node in range(work.nodes)])
    train, test = (cast(Tensor, data.transform(each.inputs)) for each in (data.train, data.test))
    labels, truth = (cast(Tensor, each.targets) for each in (data.train, data.test))

    @torch.no_grad()
    def loss(model: nn.Module) -> float:
        return F.cross_entropy(model(test), truth).item()

    return train[places], labels[places], loss


def bare_rounds(model: nn.Module, images: Tensor, labels: Tensor, work: Work) -> Iterator[None]:
    """Run rounds of federated averaging without end; each round updates the model's parameters."""
    rng = torch.Generator().manual_seed(work.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
    parameters = [p.detach() for p in model.parameters()]
    current = [p.clone() for p in parameters]
    total = [torch.empty_like(p) for p in parameters]
    while True:
        for t in total:
            t.zero_()
        weight = 0
        for node in torch.randperm(work.nodes, generator=rng)[: work.cohort].tolist():
            for p, c in zip(parameters, current, strict=True):
                p.copy_(c)
            x, y = images[node], labels[node]
            order = torch.randperm(len(y), generator=rng) if work.shuffle else None
            for start in range(0, len(y), work.batch):
                here = slice(start, start + work.batch)
                batch = here if order is None else order[here]
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x[batch]), y[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            for t, p in zip(total, parameters, strict=True):
                t.add_(p, alpha=len(y))
            weight += len(y)
        for p, c, t in zip(parameters, current, total, strict=True):
            torch.div(t, weight, out=c)
            p.copy_(c)
        yield


def bare(work: Work | None = None) -> Child:
    """Return the plain loop in a process that lasts for the whole comparison."""
    argument = (work or Work()).as_argument()
    return Child([sys.executable, "-m", "papers.benchmarks.peers", "serve", argument])


def pfl(processes: int = 1, work: Work | None = None) -> Child | None:
    """Return pfl in processes that last for the whole comparison; None if it is not installed."""
    if importlib.util.find_spec("pfl") is None:
        return None
    command = [sys.executable, "-m", "papers.benchmarks.peers_pfl", (work or Work()).as_argument()]
    if processes == 1:
        return Child(command)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # pfl starts with several processes if each gets all addresses (pfl connects only to the first)
    # and a rank.
    addresses = ",".join([f"127.0.0.1:{port}"] * processes)
    envs = [
        {"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(rank)}
        for rank in range(processes)
    ]
    return Child(command, envs)


def bare_loop(rounds: int, work: Work | None = None, warmup: int = 1) -> list[float]:
    """Return the seconds of each round of the plain loop, without start-up."""
    with bare(work) as child:
        return child(warmup + rounds)[warmup:]


def pfl_seconds(
    rounds: int, processes: int = 1, work: Work | None = None, warmup: int = 1
) -> list[float] | None:
    """Return the seconds of each round of pfl, without start-up; None if pfl is not installed."""
    child = pfl(processes, work)
    if child is None:
        print(PFL_MISSING, file=sys.stderr)
        return None
    with child:
        return child(warmup + rounds)[warmup:]


def add_losses(result: dict[str, dict[str, Any]], children: Mapping[str, Child]) -> None:
    """Add `loss` to each result: [rounds, loss] after the first and last block that all ran."""
    common = sorted(set.intersection(*(set(child.losses) for child in children.values())))
    for name, child in children.items():
        result[name]["loss"] = [[r, round(child.losses[r], 3)] for r in (common[0], common[-1])]


def _serve(work: Work) -> None:
    configure_process()
    torch.manual_seed(work.seed)
    model, (images, labels, loss) = LeNet5(), make_data(work)
    run = bare_rounds(model, images, labels, work)
    take_turns(run.__next__, lambda: loss(model))


def main() -> None:
    """Compare the baselines and print JSON."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with ExitStack() as stack:
        candidates = {"bare": bare(), "pfl, 1 process": pfl(1), "pfl, 2 processes": pfl(2)}
        children = {k: stack.enter_context(v) for k, v in candidates.items() if v is not None}
        if len(children) == 1:
            print(PFL_MISSING, file=sys.stderr)
        result = compare(children)
        add_losses(result, children)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    _serve(Work.from_argument(sys.argv)) if sys.argv[1:2] == ["serve"] else main()
