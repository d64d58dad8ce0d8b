"""Saved models: what a run's model file says of the model, and the model that it makes again.

A model's file names classes, as a submitted configuration does, and may be of somebody else. So it
may name only what every run may name (`edgewire.conf.trust`), and the classes of packages that the
caller allows, or that lie here as files of the user's own with the same contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from edgewire.conf.build import model_node, module_of, objective_of, seeded
from edgewire.conf.check import build
from edgewire.conf.classes import is_ours, targets_in
from edgewire.conf.own_packages import import_packages, marked
from edgewire.conf.schema import Config, ConfigError
from edgewire.conf.trust import NodeGrants, abbreviate
from edgewire.task.datasets import Data
from edgewire.task.errors import TaskError, described
from edgewire.task.finetuning import in_dtype
from edgewire.task.model_info import LOOKED_AT, ModelInfo, kinds_of, read_model, samples_of
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
    adapter = None if config.adapter["_target_"] == PLAIN else dict(config.adapter)
    info = ModelInfo(
        data=config.dataset.name,
        model=model_node(config, data),
        objective=dict(config.objective),
        # A table's least and largest values may be a person's; its columns tell enough.
        inputs=kinds_of(data.train.inputs, LOOKED_AT if data.columns is None else 0),
        transform=saved(data.transform),
        adapter=adapter,
        dtype=config.model.dtype,
        reader=_reader(config, data),
        classes=data.classes,
        class_names=[*data.class_names],
        columns=None if data.columns is None else data.columns.to_json(),
        seed=config.seed,
        batch=evaluation_batch(objective_of(config), config.batch_size),
    )
    named = [
        *(word.partition("@")[0] for word in config.packages),
        *(n for _, _, n in _classes(info)),
    ]
    tops = dict.fromkeys(name.partition(".")[0] for name in named)
    return replace(info, packages=[marked(top) for top in tops if top != "edgewire"])


def _reader(config: Config, data: Data) -> dict[str, Any] | None:
    """Return the options of a function that reads files of the user's own; no paths."""
    own = dict(config.dataset.own)
    if not str(own.get("_target_")).startswith(READERS) or ".synthetic." in own["_target_"]:
        return None
    own.pop("test_share", None)
    return own | ({"classes": [*data.class_names]} if data.class_names else {})


def _classes(info: ModelInfo) -> list[tuple[str, str, str]]:
    """Return group, key and name of each class that a description names."""
    nodes = {
        "model": info.model,
        "adapter": info.adapter,
        "objective": info.objective,
        "transform": info.transform,
        "dataset": info.reader,
    }
    return [(group, *each) for group, node in nodes.items() for each in targets_in(group, node)]


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
        raise type(error)(f"{path}: {' '.join(str(error).split())[:500]}") from error
    except Exception as error:  # hostile values raise a dozen types
        raise TaskError(f"{path}: no model can be made of it: {described(error)}") from error


def _expect_trusted(info: ModelInfo, packages: Sequence[str]) -> None:
    """Raise `ConfigError` for a class that a file may not name; import the packages of the others.

    It imports nothing before it has looked at all classes.
    """
    words = {word: word.partition("@")[0] for word in info.packages if "@" in word}
    own = [name for word, name in words.items() if marked(name) == word]
    grants = NodeGrants((*packages, *own, *NodeGrants.of({}).allow))
    for group, key, name in _classes(info):
        listed = name in TRANSFORMS if group == "transform" else is_ours(group, name)
        top = name.partition(".")[0]
        if not listed and not grants.allows(name) and top not in packages:
            raise ConfigError(
                f"{key}={abbreviate(name)}: its package is not EdgeWire's, and no files of yours "
                f"with the run's contents; if you trust it, name it: --packages={abbreviate(top)} "
                f"(in Python: load_model(RUN, packages=['{abbreviate(top)}']))"
            )
    tops = dict.fromkeys(name.partition(".")[0] for name in (*own, *packages))
    import_packages([name for name in tops if name != "__main__"])


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

    def read(root: str) -> Data:
        """Return the data of a file, as all data of a device."""
        found: Data = build("dataset", {**(info.reader or {}), "root": root, "on_device": True})
        return found

    objective = build("objective", info.objective)
    return Predictor(
        info, model, restored(info.transform), objective, read if info.reader else None
    )
