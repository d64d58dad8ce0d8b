"""What an objective is."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from edgewire.task.errors import TaskError
from edgewire.task.metric import LONGEST, LOSS, Metric, fit_to_show
from edgewire.task.tensors import Tensors

# The sum that says how many targets count, if an objective leaves some out.
COUNTED = "num-counted"
# The end of the name of a sum that is a list of keys, which are joined, and not added. A key is an
# integer from 0 on; its bits from the 33rd on are a group, of which a sample has one key.
KEYS = "/keys"
# Names in a run's records (docs/run-files.md) that no metric can have.
TAKEN = frozenset(
    (
        *("round", "rounds", "train_loss", "lr", "least_variance", "drift", "staleness"),
        *("prediction_error", "uplink_entries", "uplink_entries_whole", "client_updates"),
        *("failures", "virtual_seconds", "seconds", "diverged", "stopped", "ended", "sparsity"),
        *("link_down_mbps", "link_up_mbps", "link_seconds", "link_seconds_float32"),
        *("uplink_ratio", "downlink_ratio", "parameters", "nodes", "seed", "algorithm"),
        *("strategy", "dataset", "model", "objective", "metrics", "segments", "versions"),
        *("num-examples", "num-steps", COUNTED, "confusion", "class_names", "constant", "data"),
        *("node", "number", "name", "partition", "online", "waiting", "messages", "replies"),
        *("reason", "sent", "heard", "lag", "mean_lag", "samples", "survey", "personal"),
        *("privacy", "epsilon"),
    )
)
TAKEN_PARTS = ("best_", "node_", "_bytes", "_by_segment")  # other names hold one of these


class Objective(ABC):
    """The loss that training minimises, and the metrics of an evaluation.

    `metrics`: the metrics beside the loss. The first one is the run's main metric; without metrics
    it is the loss. The option `metrics` names others of them, and of `others`, in their place; a
    class with an `__init__` of its own passes it on. `others`: further metrics that can be named.
    `least`: the least value that the loss can have; a server refuses smaller ones.
    `needs_inputs`: whether `loss` reads the inputs itself, and not only by a call of the model. A
    model that is cut over several nodes then sends them to the last node. `finite_targets`: whether
    NaN and infinity in the targets are refused before the run. `batch_loss`: whether the loss of a
    sample depends on the other samples of its batch, as a contrastive loss does. The model is then
    evaluated in batches of the run's `batch_size`, so that the loss is comparable with training's.
    """

    metrics: tuple[Metric, ...] = ()
    others: ClassVar[tuple[Metric, ...]] = ()
    least: ClassVar[float] = -math.inf
    needs_inputs: ClassVar[bool] = False
    finite_targets: ClassVar[bool] = False
    batch_loss: ClassVar[bool] = False

    def __init__(self, metrics: Sequence[str] | None = None) -> None:
        if metrics is None:
            return
        known = {each.name: each for each in (*self.metrics, *self.others)}
        for name in metrics:
            if name not in known or metrics.count(name) > 1:
                raise TaskError(
                    f"metrics: {name} is none of the metrics, or named twice; "
                    f"{type(self).__name__} has {', '.join(known)}"
                )
        self.metrics = tuple(known[name] for name in metrics)

    def check(self) -> None:
        """Raise `TaskError` for metrics that a run cannot record."""
        name = type(self).__name__
        if not isinstance(self.metrics, tuple | list) or not all(
            isinstance(each, Metric) and isinstance(each.name, str) for each in self.metrics
        ):
            raise TaskError(f"{name}.metrics must be a tuple of Metric, such as (Metric('mae'),)")
        for metric in self.names[1:]:
            taken = metric in {*TAKEN, LOSS.name} or self.names.count(metric) > 1
            taken = taken or any(part in metric for part in TAKEN_PARTS)
            if taken or not fit_to_show(metric):
                raise TaskError(
                    f"{name} names a metric {metric[:LONGEST]!r}: give it another name, of at most "
                    f"{LONGEST} printable characters, which a run's records do not use already"
                )

    def __init_subclass__(cls) -> None:
        """Reset what the base class said of its loss in a class that has another, unless given."""
        super().__init_subclass__()
        if "loss" in vars(cls):
            for name in {"least", "finite_targets"} - vars(cls).keys():
                setattr(cls, name, getattr(Objective, name))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the values of an evaluation: the loss, then the metrics."""
        return (LOSS.name, *(metric.name for metric in self.metrics))

    @property
    def bounds(self) -> dict[str, tuple[float, float]]:
        """The least and the largest value of the loss and of each metric."""
        shares = {True: (0.0, 1.0), False: (-math.inf, math.inf)}
        found = {metric.name: shares[bool(metric.share)] for metric in self.metrics}
        return {LOSS.name: (self.least, math.inf), **found}

    @property
    def main(self) -> Metric:
        """The metric by which results are compared."""
        return self.metrics[0] if self.metrics else LOSS

    @abstractmethod
    def loss(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> Tensor:
        """Return the mean loss of a mini-batch, a scalar of any sign with a gradient."""

    @abstractmethod
    def sums(self, model: nn.Module, inputs: Tensors, targets: Tensors) -> dict[str, Tensor]:
        """Return sums over a batch by name: numbers, or vectors of a fixed length.

        One of them is `loss`. Gradients are off. A vector with a name that ends with `KEYS` has any
        length; `measured` gets the keys of all samples, in any order.
        """

    def measured(self, sums: Mapping[str, Any], samples: float) -> Mapping[str, float | None]:
        """Return the loss and the metrics from the sums over all batches, of `samples` samples.

        A vector is a list here. A metric that the sums do not define is None. For sums over the
        samples of several nodes, the arguments are their means over all samples, and 1.

        Here each number is divided by the sum `COUNTED`, or without it by the number of samples. If
        nothing counts, the loss is 0, and no metric is defined. The loss is NaN for a count below
        0, and for a sum that no samples give if nothing counts. A server refuses NaN.
        """
        counted = sums.get(COUNTED, samples)
        numbers = {name: total for name, total in sums.items() if not isinstance(total, list)}
        if counted <= 0:
            wrong = counted < 0 or sums.get("loss", 0) < 0 or any(map(numbers.get, self.names[1:]))
            return {**dict.fromkeys(self.names), LOSS.name: math.nan if wrong else 0.0}
        return {name: total / counted for name, total in numbers.items() if name != COUNTED}

    def facts(
        self, sums: Mapping[str, Any], targets: Tensors, classes: Sequence[str]
    ) -> dict[str, Any]:
        """Return what a result holds beside the metrics of the last evaluation; here nothing.

        `sums`: of all samples. `targets`: the samples' targets; () if only nodes have them.
        `classes`: the names of the classes.
        """
        return {}

    def constant(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Return the metrics, without the loss, of a model with these outputs for the targets."""
        sums = self.sums(cast(nn.Module, lambda inputs: outputs), (), targets)
        found = self.defined({name: each.tolist() for name, each in sums.items()}, len(targets))
        return {name: found[name] for name in self.names[1:] if name in found}

    def answer(self, outputs: Tensors) -> Tensors:
        """Return what a model's outputs say, for a user; here the outputs."""
        return outputs

    def defined(self, sums: Mapping[str, Any], samples: float) -> dict[str, float]:
        """Return the loss and the metrics of `names` from `measured`, without undefined ones.

        None are if `measured` cannot be computed, as by a division by a count of 0.
        """
        try:
            found = self.measured(sums, samples)
        except (ArithmeticError, ValueError):
            return {}
        return {n: v for n, v in found.items() if n in self.names and v is not None}
