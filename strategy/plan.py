"""The plan of a cut model: who gets which layers, what it costs them, what goes between them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from compression import PayloadError, describe
from conf import Config
from conf.build import model_of
from strategy.activations import GRADIENTS
from strategy.flow import Task
from task.costs import Cost, balanced, costs_of, measure
from task.datasets import Data
from task.errors import TaskError
from task.layers import Part, check_cuts, layers_of, parts_of, segment_of
from task.steps import prepare

if TYPE_CHECKING:
    from strategy.segments import Segmented

AUTO = "auto"


class Plan:
    """The parts of a model; `beside`: each part's tensors that are no float32 vector."""

    def __init__(
        self,
        parts: list[Part],
        costs: list[Cost],
        names: list[list[str]],
        beside: list[dict[str, NDArray[Any]]],
        synthetic: bool,
    ) -> None:
        self.parts, self.costs, self.names, self.beside = parts, costs, names, beside
        self.synthetic = synthetic

    @property
    def cuts(self) -> tuple[int, ...]:
        """The numbers of the layers with which a new segment begins."""
        return tuple(part.first for part in self.parts[1:])

    def steps(self, task: Task, micros: int) -> float:
        """Return what a task costs, in steps of the whole model by backpropagation."""
        cost = self.costs[task.segment]
        ends = task.segment + 1 == len(self.parts)
        forward, backward = task.phase in ("train", "forward"), task.phase != "forward" or ends
        share = cost.forward * forward + cost.backward * (backward and bool(task.phase))
        if task.phase == "train":
            share += cost.module
        return share * task.batches / micros

    def plain(self, task: Task, samples: int) -> Mapping[str, list[tuple[tuple[int, ...], str]]]:
        """Return what the tensors in a task's messages are without compression, by name."""
        part, many = self.parts[task.segment], task.batches
        shapes = {
            "input": part.input,
            "output": part.output,
            "gradients": part.input,  # those it sends
            GRADIENTS: part.output,  # those it gets
        }
        found = {name: [((samples, *shape), "float32")] * many for name, shape in shapes.items()}
        return {**found, "labels": [((samples,), "int64")] * many}

    def check(self, task: Task, samples: int, payloads: Mapping[str, bytes]) -> None:
        """Raise `PayloadError` for an answer that does not hold what its task leaves."""
        part, count = self.parts[task.segment], task.batches * samples
        ends = task.segment + 1 == len(self.parts)
        if not task.phase:
            return
        wanted = {}
        if not ends and task.phase != "backward":
            wanted["output"] = count * math.prod(part.output)
        if task.segment and (ends or task.phase != "forward"):
            wanted["gradients"] = count * math.prod(part.input)
        for name, size in wanted.items():
            if name not in payloads:
                raise PayloadError(f"the answer holds no {name}")
            if (entries := describe(payloads[name]).n) != size:
                raise PayloadError(f"its {name} have {entries} entries, {size} are expected")
        if task.segment == 0 and not ends and task.phase != "backward" and "labels" not in payloads:
            raise PayloadError("the answer holds no labels")

    def described(self) -> list[dict[str, Any]]:
        """Return what a picture of the plan needs: plain values, a dict a segment."""
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


def plan_of(strategy: Segmented, config: Config, data: Data) -> Plan:
    """Return a strategy's plan for the configured model. Raises `TaskError` if there is none."""
    if not str(config.partition["_target_"]).endswith("IidPartitioner"):
        raise TaskError("the first node holds all of the data: leave partition=iid")
    make = partial(model_of, config, data)
    model = make()
    layers = layers_of(model)
    cuts = _cuts(strategy, config, data, len(layers))
    shape = tuple(data.train.images.shape[1:])
    parts = parts_of(make, cuts, shape)
    if len(parts) > config.nodes:
        raise TaskError(f"{len(parts)} segments need as many nodes, not nodes={config.nodes}")
    costs = costs_of(make, parts, data.classes, strategy.hidden)
    segments = [segment_of(model, part.first, part.last) for part in parts]
    beside = [{n: t.numpy() for n, t in each.beside().items()} for each in segments]
    names = [[layer.name for layer in layers[part.first : part.last]] for part in parts]
    return Plan(parts, costs, names, beside, strategy.synthetic)


def _cuts(strategy: Segmented, config: Config, data: Data, layers: int) -> tuple[int, ...]:
    """Return the cuts: those given, or the best for what layers take here."""
    if strategy.cuts != AUTO:
        given = strategy.cuts
        if isinstance(given, str) or not hasattr(given, "__iter__"):
            raise TaskError(f"strategy.cuts must be auto or a list such as [1,3], not {given!r}")
        if strategy.segments is not None or strategy.memory_mb is not None:
            raise TaskError("strategy.segments and strategy.memory_mb go with strategy.cuts=auto")
        return check_cuts(list(given), layers)
    segments = strategy.segments or min(config.nodes, layers)
    limits = _limits(strategy.memory_mb, segments)
    if segments in (1, layers) and limits is None:
        return tuple(range(1, segments))  # there is nothing to choose
    images = prepare(data.train.images[: config.batch_size], data.mean, data.std)
    make = partial(model_of, config, data)
    return balanced(measure(make, images, data.classes, strategy.hidden), segments, limits)


def _limits(memory_mb: Any, segments: int) -> list[float] | None:
    """Return the bytes of each node: of one number for all, or of a list."""
    if memory_mb is None:
        return None
    given = list(memory_mb) if hasattr(memory_mb, "__iter__") else [memory_mb] * segments
    numbers = all(isinstance(each, int | float) and each > 0 for each in given)
    if not numbers or len(given) < segments:
        raise TaskError(
            f"strategy.memory_mb must be a number above 0, or {segments} of them, not {memory_mb}"
        )
    return [each * 1e6 for each in given]
