"""Plans a cut model: its parts, their costs, and the tensors that are sent between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from edgewire.compression.base import PayloadError
from edgewire.compression.codec import Codec
from edgewire.compression.flower.headers import brief
from edgewire.conf.build import model_of, objective_of
from edgewire.conf.check import codec_of
from edgewire.conf.option_group import OptionGroup, bounded
from edgewire.conf.schema import Config
from edgewire.pipeline.costs import Cost, balanced, costs_of
from edgewire.pipeline.gradient_predictor import LOSS, GradientModules, ModuleForm
from edgewire.pipeline.layers import Part, check_cuts, layers_of, parts_of, segment_of
from edgewire.pipeline.messages import (
    SnapshotForm,
    TargetTensor,
    expect_tensors,
    types_of,
    unpack_targets,
)
from edgewire.pipeline.server.schedule import Task
from edgewire.task.datasets import Data
from edgewire.task.errors import TaskError
from edgewire.task.flat_model import to_array
from edgewire.task.objectives import Objective
from edgewire.task.objectives.classification import Classification
from edgewire.task.objectives.end_loss import EndLoss
from edgewire.task.tensors import Tensors

AUTO = "auto"
NO_LABELS = (
    "the modules for synthetic gradients get no labels, because the data set does not say its "
    "classes: give dataset.classes=[0,1,2], say (in a function of your own Data(classes=3))"
)


@dataclass(frozen=True)
class Cutting(OptionGroup):
    """Says where a model is cut into segments. A segment is consecutive layers on one node.

    `cuts`: the numbers of the layers with which a new segment begins, or "auto". "auto" chooses the
    cuts with which the largest segment has as few operations as possible. `segments`: the number of
    segments for "auto"; None: one for each node. Raises `ValueError` for `segments` below 1.
    """

    cuts: Any = AUTO
    segments: int | None = bounded(None, at_least=1)


@dataclass(frozen=True, eq=False)
class Plan:
    """The parts of a cut model; part i is trained as segment i.

    For each part: `costs`: its cost. `names`: the names of its layers. `beside`: its native
    tensors, by name. `copies`: the tensors that a copy of it may hold. For the model: `codecs`: the
    codecs of "output" and "gradients". `targets`: what the first segment's node sends for the loss.
    `conditioned`: True if the modules get the labels. `unlabelled`: True if a classifier's modules
    get none, because the data set does not say its classes.
    """

    parts: list[Part]
    costs: list[Cost]
    names: list[list[str]]
    beside: list[dict[str, NDArray[Any]]]
    copies: list[SnapshotForm]
    codecs: Mapping[str, Codec]
    targets: Sequence[TargetTensor]
    conditioned: bool
    unlabelled: bool

    @property
    def cuts(self) -> tuple[int, ...]:
        """The numbers of the layers at which a new segment begins."""
        return tuple(part.first for part in self.parts[1:])

    def steps(self, task: Task, micros: int) -> float:
        """Return a task's operations, relative to one backpropagation step of the whole model.

        `micros`: the number of micro-batches in a mini-batch.
        """
        cost = self.costs[task.segment]
        ends = task.segment + 1 == len(self.parts)
        forward, backward = task.phase in ("train", "forward"), task.phase != "forward" or ends
        share = cost.forward * forward + cost.backward * (backward and bool(task.phase))
        if task.phase == "train":
            share += cost.module
        return share * task.batches / micros

    def asked(self, task: Task) -> list[str]:
        """Return the names of the payloads for other segments that a task's reply must hold."""
        ends = task.segment + 1 == len(self.parts)
        forward, backward = task.phase in ("train", "forward"), task.phase in ("train", "backward")
        return [
            *["output"] * (forward and not ends),
            *["gradients"] * (task.segment > 0 and (backward or (forward and ends))),
            *["labels"] * (forward and task.segment == 0 and not ends and bool(self.targets)),
        ]

    def check(self, task: Task, samples: int, payloads: Mapping[str, bytes], copy: bool) -> None:
        """Raise `PayloadError` unless a reply holds exactly the payloads that its task asks for.

        `copy`: True if one payload must be a copy of the segment; `Snapshots.take` checks this
        payload. The method checks only the headers of activations and gradients, because the
        receiving node decodes them. It decodes all targets, so that no node gets labels out of
        range.
        """
        part, wanted = self.parts[task.segment], self.asked(task)
        names = [*wanted, "copy"] if copy else wanted
        for name in (*payloads, *names):
            if name not in names:
                raise PayloadError(f"the reply holds {brief(name)}, which was not asked for")
            if name not in payloads:
                raise PayloadError(f"the reply holds no {name}")
        for name, shape in (("output", part.output), ("gradients", part.input)):
            if name in wanted:
                codec, shapes = self.codecs[name], (samples, *shape)
                expect_tensors(payloads[name], task.batches, shapes, f"its {name}", codec)
        if "labels" in wanted:
            unpack_targets(payloads["labels"], (task.batches, samples), self.targets)

    def described(self) -> list[dict[str, Any]]:
        """Return the plan for `result.json`, with one dictionary for each segment."""
        return [
            {
                "layers": names,
                "first": part.first,
                "parameters": part.trained,
                "output": list(part.output),
                "share": round(cost.forward + cost.backward + cost.module, 4),
                "module_share": round(cost.module, 4),
            }
            for part, cost, names in zip(self.parts, self.costs, self.names, strict=True)
        ]


def plan_of(
    config: Config, data: Data, cutting: Cutting, modules: GradientModules | None, micros: int
) -> Plan:
    """Return the plan for the configured model.

    `modules`: None without synthetic gradients. `micros`: the number of micro-batches in a
    mini-batch. Raises `TaskError` if the plan is not possible with this model, number of nodes or
    mini-batch size.
    """
    make = partial(model_of, config, data)
    model = make()
    end_loss = EndLoss(objective_of(config), data)
    end_loss.check(model, data.train.taken(torch.arange(min(2, len(data.train)))))
    layers = layers_of(model)
    if str(config.partition["_target_"]).rpartition(".")[2] not in ("Iid", "IidPartitioner"):
        raise TaskError("the first node holds all of the data: give partition=iid")
    uncut = cutting.cuts == AUTO and cutting.segments == 1
    form = modules.form(end_loss.classes) if modules else None
    _expect_enough(config, data, model, micros, None if uncut else form)
    cuts = _cuts(cutting, config.nodes, make, len(layers), data.example, form)
    if form is not None:
        form.expect(len(cuts))
    parts = parts_of(make, cuts, data.example)
    if len(parts) > config.nodes:
        raise TaskError(f"{len(parts)} segments need as many nodes, not nodes={config.nodes}")
    unlabelled = form is not None and len(parts) > 1 and _lacks_labels(form, objective_of(config))
    costs = costs_of(make, parts, data.example, form)
    segments = [segment_of(model, part.first, part.last) for part in parts]
    beside = [{n: to_array(t) for n, t in each.beside().items()} for each in segments]
    names = [[layer.name for layer in layers[part.first : part.last]] for part in parts]
    copies = [
        SnapshotForm(part.size, part.trained, cost.entries, types_of(own), config.batch_size)
        for part, cost, own in zip(parts, costs, beside, strict=True)
    ]
    codecs = {"output": codec_of(config), "gradients": codec_of(config, "gradients")}
    described = zip(end_loss.tensors, end_loss.ranges(), strict=True)
    targets = [TargetTensor(*tensor, between) for tensor, between in described]
    conditioned = form is not None and bool(form.classes)
    return Plan(parts, costs, names, beside, copies, codecs, targets, conditioned, unlabelled)


def _lacks_labels(form: ModuleForm, objective: Objective) -> bool:
    """Return whether a classifier's modules get no labels, although they should (`conditioned`).

    Raises `TaskError` if modules without labels cannot be trained as asked. Without labels
    `gradient_of_loss` hardly trains a classifier.
    """
    if form.classes or not form.conditioned:
        return False
    if form.module == "gradient_of_loss" and isinstance(objective, Classification):
        raise TaskError(
            f"{NO_LABELS}, or strategy.module=predicted_gradient strategy.trained_by=gradients"
        )
    if form.trained_by == LOSS:
        raise TaskError(
            "strategy.trained_by=loss needs labels, and this task has no classes: drop it"
        )
    return isinstance(objective, Classification)


def _expect_enough(
    config: Config, data: Data, model: nn.Module, micro_batches: int, form: ModuleForm | None
) -> None:
    """Raise `TaskError` for mini-batches that are too small for micro-batches or BatchNorm.

    `form`: the form of the modules for synthetic gradients; None: there are none.
    """
    samples = min(config.batch_size, len(data.train))
    least = samples // micro_batches
    if least < 1:
        raise TaskError(f"mini-batches of {samples} samples are no {micro_batches} micro-batches")
    norms = any(isinstance(module, _BatchNorm) for module in model.modules())
    modules = form is not None and form.has_batchnorm and config.nodes > 1
    if least < 2 and (norms or modules):
        raise TaskError(
            "BatchNorm, also that of modules for synthetic gradients, needs mini-batches (and "
            "micro-batches) of 2 samples or more: give a larger batch_size"
        )


def _cuts(
    cutting: Cutting,
    nodes: int,
    make: Callable[[], nn.Module],
    layers: int,
    example: Tensors,
    modules: ModuleForm | None,
) -> tuple[int, ...]:
    """Return the configured cuts, or count the layers' operations and return the best cuts.

    `example`, `modules`: as in `costs_of`.
    """
    if cutting.cuts != AUTO:
        given = cutting.cuts
        if isinstance(given, str) or not hasattr(given, "__iter__"):
            raise TaskError(f"strategy.cuts must be auto or a list such as [1,3], not {given!r}")
        if cutting.segments is not None:
            raise TaskError("strategy.segments goes with strategy.cuts=auto")
        return check_cuts(list(given), layers)
    segments = cutting.segments or min(nodes, layers)
    if segments in (1, layers):
        return tuple(range(1, segments))  # only one choice of cuts is possible
    if modules is not None:
        modules.expect(None)
    every = parts_of(make, range(1, layers), example)
    return balanced(costs_of(make, every, example, modules), segments)
