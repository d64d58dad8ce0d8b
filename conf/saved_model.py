"""Saved models: what a run's model file says of the model, and the model that it makes again.

A model's file names classes, as a submitted configuration does, and may be of somebody else. So it
may name only what every run may name (`edgewire.conf.trust`), and the classes of packages that the
caller allows, or that lie here as files of the user's own with the same contents.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from torch import Tensor

from edgewire.conf.build import model_node, module_of, objective_of, seeded
from edgewire.conf.check import build
from edgewire.conf.classes import is_ours, nested
from edgewire.conf.own_packages import fingerprint, import_packages, is_installed
from edgewire.conf.schema import Config, ConfigError
from edgewire.conf.trust import NodeGrants, abbreviate
from edgewire.task.datasets import Data
from edgewire.task.errors import TaskError
from edgewire.task.errors import described as described_error
from edgewire.task.finetuning import in_dtype
from edgewire.task.model_info import LOOKED_AT, ModelInfo, described, read_model, samples_of
from edgewire.task.predictor import Predictor
from edgewire.task.steps import evaluation_batch
from edgewire.task.transforms import restored, saved

TRANSFORMS = {
    *(f"edgewire.task.transforms.{n}" for n in ("ImageTransform", "LogMel", "Standardize")),
    *("edgewire.task.transforms.unchanged", "edgewire.task.tables.transform.TableTransform"),
}
PLAIN = "edgewire.task.finetuning.Adapter"  # adds none
READERS = "edgewire.task.datasets."  # functions of these modules read files of the user's own


def info_of(config: Config, data: Data) -> ModelInfo:
    """Return what a run's model file says of its model."""
    objective, transform = dict(config.objective), saved(data.transform)
    adapter = None if config.adapter["_target_"] == PLAIN else dict(config.adapter)
    model = model_node(config, data)
    names = [name for _, name in _targets(model, adapter, objective, transform)]
    tops = dict.fromkeys(name.partition(".")[0] for name in names)
    packages = [word.partition("@")[0] for word in config.packages]
    return ModelInfo(
        config.dataset.name,
        model,
        objective,
        # A table's least and largest values may be a person's; its columns tell enough.
        described(data.train.inputs, LOOKED_AT if data.columns is None else 0),
        transform,
        adapter,
        config.model.dtype,
        _reader(config, data),
        data.classes,
        [*data.class_names],
        None if data.columns is None else data.columns.to_json(),
        [_marked(each) for each in dict.fromkeys([*packages, *tops]) if each != "edgewire"],
        config.seed,
        evaluation_batch(objective_of(config), config.batch_size),
    )


def _marked(package: str) -> str:
    """Return NAME@FINGERPRINT of a package of files of the user's own; NAME of any other."""
    with suppress(ConfigError):  # a notebook's __main__ is in no file
        return package if is_installed(package) else f"{package}@{fingerprint(package)}"
    return package


def _reader(config: Config, data: Data) -> dict[str, Any] | None:
    """Return the options of a function that reads files of the user's own; no paths."""
    own = dict(config.dataset.own)
    if not str(own.get("_target_")).startswith(READERS) or ".synthetic." in own["_target_"]:
        return None
    own.pop("test_share", None)
    return own | ({"classes": [*data.class_names]} if data.class_names else {})


def _targets(*nodes: Any) -> list[tuple[str, str]]:
    """Return the key and the name of each class that the nodes name."""
    groups = ("model", "adapter", "objective", "transform", "dataset")
    every = [
        each for group, node in zip(groups, nodes, strict=False) for each in nested(group, node)
    ]
    return [(key, str(name)) for key, name in every if key.endswith("._target_")]


def predictor_of(path: str, packages: Sequence[str] = ()) -> Predictor:
    """Return the model in a run's folder, or in a model's file, for use.

    `packages`: packages that a file of somebody else may name, or classes in them. Raises
    `TaskError` or `ConfigError` in one line for a file that cannot be used, and for a class that it
    may not name.
    """
    info, tensors = read_model(path)
    try:
        _expect_trusted(info, packages)
        return _made(info, tensors)
    except (ConfigError, TaskError) as error:
        kind = ConfigError if isinstance(error, ConfigError) else TaskError
        raise kind(f"{path}: {' '.join(str(error).split())[:500]}") from error
    except Exception as error:  # hostile values raise a dozen types
        raise TaskError(f"{path}: no model can be made of it: {described_error(error)}") from error


def _expect_trusted(info: ModelInfo, packages: Sequence[str]) -> None:
    """Raise `ConfigError` for a class that a file may not name; import the packages of the others.

    It imports nothing before it has looked at all classes.
    """
    own = [name for name, _, mark in (word.partition("@") for word in info.packages) if mark]
    trusted = [name for name in own if f"{name}@{_fingerprint(name)}" in info.packages]
    grants = NodeGrants((*packages, *trusted, *NodeGrants.of({}).allow))
    nodes = info.model, info.adapter, info.objective, info.transform, info.reader
    for key, name in _targets(*nodes):
        group, top = key.partition(".")[0], name.partition(".")[0]
        listed = name in TRANSFORMS if group == "transform" else is_ours(group, name)
        if not listed and not grants.allows(name) and top not in packages:
            gone = "is not here, or has other contents than the run's"
            said = gone if top in own else "is not EdgeWire's"
            raise ConfigError(
                f"{key}={abbreviate(name)}: its package {said}; if you trust it, name it: "
                f"--packages={abbreviate(top)} (in Python: load_model(RUN, packages=['{top}']))"
            )
    tops = [name.partition(".")[0] for name in (*trusted, *packages)]
    import_packages([name for name in dict.fromkeys(tops) if name not in sys.modules])


def _made(info: ModelInfo, tensors: dict[str, Tensor]) -> Predictor:
    if info.transform is None:
        raise TaskError(
            "the transform of its data is in no file: make it a function of a module, or a "
            "dataclass, and train again"
        )
    samples_of(info.inputs, 0)  # it raises errors for a broken description
    model = module_of(info.model, info.seed)
    if info.adapter is not None:
        with seeded(info.seed):
            model = build("adapter", info.adapter).add(model)
    in_dtype(model, info.dtype).load_state_dict(tensors)
    objective = build("objective", info.objective)
    reader = None if info.reader is None else partial(_read, info.reader)
    return Predictor(info, model, restored(info.transform), objective, reader)


def _fingerprint(package: str) -> str:
    with suppress(ConfigError):
        return "" if is_installed(package) else fingerprint(package)
    return ""


def _read(options: dict[str, Any], root: str) -> Data:
    """Return the data of a file, as all data of a device."""
    found: Data = build("dataset", {**options, "root": root, "on_device": True})
    return found
