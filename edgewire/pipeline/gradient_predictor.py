"""Synthetic-gradient modules, which predict the gradient of a segment's output.

There are two forms. `PredictedGradient` is that of the papers (Jaderberg et al. 2017, "Decoupled
neural interfaces using synthetic gradients", section 2.1 and appendix; Chen et al. 2019): the
output of a small network is the gradient. `GradientOfLoss` is ours: the gradient is the derivative
of the loss that a small network would have. Czarnecki et al. 2017 ("Sobolev training for neural
networks", section 4.3) train such a network on the values of the loss too.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from edgewire.conf.option_group import OptionGroup, bounded

GRADIENTS, LOSS, NOTHING = "gradients", "loss", "nothing"
FORMS = ("predicted_gradient", "gradient_of_loss")
SMALLEST = 1e-30  # the smallest square of a norm by which a cosine is divided


class Learned(NamedTuple):
    """What a module learns from a gradient.

    `loss`: a scalar with the gradient of what is to be reduced, a sum over the mini-batch; None:
    nothing. `error`: the relative error of the prediction before the step, see
    `GradientModule.learned`.
    """

    loss: Tensor | None
    error: float | None


class GradientModule(nn.Module, ABC):
    """The module M(h, y), which predicts the gradient of a segment's output h; y: the labels."""

    @abstractmethod
    def forward(self, h: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the predicted gradient, float32 of `h`'s shape (B, ...); `labels` int64 (B,)."""

    @abstractmethod
    def learned(self, h: Tensor, labels: Tensor | None, target: Tensor) -> Learned:
        """Return what the module learns from `target`, the gradient of `h`, both (B, ...).

        The relative error is ||M - target||^2 / ||target||^2. A form whose predictions have no
        scale divides out the best one. None if the target is zero: the next segment sends zeros
        before its own module has learned anything.
        """


def _norm(features: int) -> nn.BatchNorm1d:
    """Return a BatchNorm that always normalises by the mini-batch, and keeps no statistics.

    A module never sees single samples.
    """
    return nn.BatchNorm1d(features, track_running_stats=False)


class PredictedGradient(GradientModule):
    """A network with as many outputs as h has entries; they are the predicted gradient.

    It has `hidden` units with BatchNorm and ReLU. Its output layer is initialised to zero, so a new
    module predicts zero for every h. `classes`: the number of classes; the one-hot label is an
    input in addition to h. 0: no label. It is trained to reduce ||M(h, y) - target||^2.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, hidden: int) -> None:
        super().__init__()
        size = math.prod(shape)
        self.inputs = nn.Linear(size, hidden)
        self.labels = nn.Embedding(classes, hidden) if classes else None
        self.norm = _norm(hidden)
        self.outputs = nn.Linear(hidden, size)
        nn.init.zeros_(self.outputs.weight)
        nn.init.zeros_(self.outputs.bias)
        # As `nn.Linear` initialises the weights of `size` + `classes` inputs.
        if self.labels is not None:
            bound = 1 / math.sqrt(size + classes)
            nn.init.uniform_(self.labels.weight, -bound, bound)

    def forward(self, h: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the predicted gradient, float32 of `h`'s shape (B, ...); `labels` int64 (B,)."""
        hidden = self.inputs(h.flatten(1))
        if self.labels is not None:
            hidden = hidden + self.labels(labels)
        gradient: Tensor = self.outputs(torch.relu(self.norm(hidden)))
        return gradient.view(h.shape)

    def learned(self, h: Tensor, labels: Tensor | None, target: Tensor) -> Learned:
        """Return the squared error as the loss to reduce; see the base class."""
        loss = mse_loss(self(h, labels), target, reduction="sum")
        size = torch.dot(target.flatten(), target.flatten()).item()
        return Learned(loss, loss.item() / size if size else None)


class GradientOfLoss(GradientModule):
    """The derivative with respect to h of a local loss: the cross-entropy of a classifier p(h).

    p has `hidden` units with BatchNorm and ReLU, or is linear if `hidden` is 0. Without labels
    (`classes` is 0) p has one output and no BatchNorm, and the sum of this output takes the loss's
    place. The loss is summed over the mini-batch, as the true one.

    `trained_by`: "gradients": p reduces one minus the cosine between the derivative and the target,
    both as one vector over the whole mini-batch, so p never sees its own loss. "loss" and "nothing"
    are controls: p reduces its own loss and ignores the target, which is greedy layer-wise training
    (Belilovsky et al. 2019); or p stays as it was initialised.
    """

    def __init__(
        self, shape: tuple[int, ...], classes: int, hidden: int, trained_by: str = GRADIENTS
    ) -> None:
        super().__init__()
        size, outputs = math.prod(shape), classes or 1
        self.trained_by, self._labelled = trained_by, bool(classes)
        # The sum of one output hardly depends on what BatchNorm has set to mean 0 and variance 1.
        norms = [_norm(hidden)] if classes and hidden else []
        layers = [nn.Linear(size, hidden), *norms, nn.ReLU()] if hidden else []
        self.classifier = nn.Sequential(nn.Flatten(), *layers, nn.Linear(hidden or size, outputs))

    def local_loss(self, h: Tensor, labels: Tensor | None) -> Tensor:
        """Return the loss of p(h), summed over the mini-batch."""
        outputs = self.classifier(h)
        if not self._labelled:
            return outputs.sum()  # type: ignore[no-any-return]
        assert labels is not None
        return cross_entropy(outputs, labels, reduction="sum")

    def forward(self, h: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the predicted gradient, float32 of `h`'s shape (B, ...); `labels` int64 (B,).

        If gradients are recorded, the prediction can be differentiated again.
        """
        trained = torch.is_grad_enabled()
        with torch.enable_grad():
            h = h.detach().requires_grad_()
            # A view: torch's counter of operations refuses leaves as the inputs of a module.
            loss = self.local_loss(h.view_as(h), labels)
            return torch.autograd.grad(loss, h, create_graph=trained)[0]

    def learned(self, h: Tensor, labels: Tensor | None, target: Tensor) -> Learned:
        """Return the loss that `trained_by` names; see the base class.

        The relative error is 1 - max(cosine, 0)^2, because only the prediction's direction is
        trained: it is what remains after the best scaling by a positive factor. It is 1 if the
        prediction is zero, or so small that the square of its norm is.
        """
        with torch.set_grad_enabled(self.trained_by == GRADIENTS):
            predicted = self(h, labels).flatten()
        found, wanted = predicted.detach(), target.flatten()
        squares, wished = torch.dot(found, found).item(), torch.dot(wanted, wanted).item()
        size = math.sqrt(squares) * math.sqrt(wished)
        known = squares > SMALLEST and wished > SMALLEST
        cosine = torch.dot(found, wanted).item() / size if known else 0.0
        error = max(1 - max(cosine, 0.0) ** 2, 0.0) if wished else None
        if self.trained_by == LOSS:
            return Learned(self.local_loss(h, labels), error)
        if self.trained_by == NOTHING or error is None:
            return Learned(None, error)
        # The gradient of B (1 - cosine) with respect to the prediction, written out: that of
        # torch's `cosine_similarity` takes several times as many passes over all entries.
        slope = found * (len(h) * cosine / squares if cosine else 0.0)
        # A prediction of zeros has no direction; it learns to follow the target.
        slope.add_(wanted, alpha=-len(h) / (size if known else math.sqrt(wished)))
        return Learned(torch.dot(predicted, slope) + len(h) * (1 - cosine), error)


@dataclass(frozen=True)
class GradientModules(OptionGroup):
    """The modules that predict gradients, one after each segment except the last.

    `module`: a name in `FORMS`. `hidden`: the number of hidden units, for all modules or for each.
    A module of the form "gradient_of_loss" without a hidden layer (0) is linear; with one number
    and with labels, the last module is so, because the layers after it have little to add.
    `trained_by`: as in `GradientOfLoss`. `conditioned`: True if a module also gets the labels.
    Raises `ValueError` for other values.
    """

    module: str = bounded("predicted_gradient", one_of=FORMS)
    hidden: Any = 64
    trained_by: str = bounded(GRADIENTS, one_of=(GRADIENTS, LOSS, NOTHING))
    conditioned: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        ours = self.module == "gradient_of_loss"
        if self.trained_by != GRADIENTS and not ours:
            raise ValueError(f"trained_by={self.trained_by} goes with module=gradient_of_loss")
        least = 0 if ours else 1
        for units in [self.hidden] if self._listed is None else self._listed:
            if isinstance(units, bool) or not isinstance(units, int) or units < least:
                raise ValueError(
                    f"hidden must be an integer of at least {least}, or one for each module, not "
                    f"{self.hidden!r}"
                )

    @property
    def _listed(self) -> list[Any] | None:
        """The numbers of units if each module has its own; None: one number for all."""
        several = hasattr(self.hidden, "__iter__") and not isinstance(self.hidden, str)
        return list(self.hidden) if several else None

    def form(self, classes: int) -> "ModuleForm":
        """Return the form of the modules. `classes`: the number of classes of a data set."""
        return ModuleForm(**vars(self), classes=classes if self.conditioned else 0)


@dataclass(frozen=True)
class ModuleForm(GradientModules):
    """The modules for a data set. `classes`: of the labels that they get; 0: they get none."""

    classes: int = 0

    @property
    def has_batchnorm(self) -> bool:
        """Whether a module may have BatchNorm, which cannot normalise a single sample."""
        if self.module != "gradient_of_loss":
            return True
        return bool(self.classes) and any(self._listed or [self.hidden])

    def expect(self, modules: int | None) -> None:
        """Raise `ValueError` if `hidden` does not have one number for each of `modules` modules.

        None: their number is not known yet.
        """
        if self._listed is None:
            return
        if modules is None:
            raise ValueError("a list of hidden units needs the cuts: give strategy.cuts=[1,3], say")
        if len(self._listed) != modules:
            raise ValueError(
                f"hidden has {len(self._listed)} numbers for {modules} modules: give one for each "
                "segment but the last"
            )

    def build(self, shape: tuple[int, ...], number: int = 0, modules: int = 0) -> GradientModule:
        """Return module `number` of `modules` for outputs of `shape`, newly initialised."""
        hidden = self.hidden if self._listed is None else self._listed[number]
        ours = self.module == "gradient_of_loss"
        if ours and self._listed is None and self.classes and number + 1 == modules:
            hidden = 0
        if ours:
            return GradientOfLoss(shape, self.classes, hidden, self.trained_by)
        return PredictedGradient(shape, self.classes, hidden)
