"""Saved models: what a run's model file says of the model, and the model that it makes again.

A model's file names classes, as a submitted configuration does, and may be of somebody else. So it
may name only what every run may name (`edgewire.conf.trust`), and the classes of packages that the
caller allows, or that lie here as files of the user's own with the same contents.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial

from edgewire.conf.build import data_of, model_of, objective_of
from edgewire.conf.classes import is_ours, targets_in
from edgewire.conf.own_packages import import_packages, marked, source_files
from edgewire.conf.schema import Config, ConfigError, DatasetConfig, ModelConfig
from edgewire.conf.trust import NodeGrants, abbreviate
from edgewire.task.datasets import Data, Split
from edgewire.task.errors import TaskError, described
from edgewire.task.finetuning import warn_of_personal
from edgewire.task.model_info import LOOKED_AT, ModelInfo, kinds_of, read_model, samples_of
from edgewire.task.predictor import Predictor
from edgewire.task.steps import evaluation_batch
from edgewire.task.transforms import restored, saved

TRANSFORMS = {
    *(f"edgewire.task.transforms.{n}" for n in ("ImageTransform", "LogMel", "Standardize")),
    *("edgewire.task.transforms.unchanged", "edgewire.task.tables.transform.TableTransform"),
}
READERS = "edgewire.task.datasets."  # functions of these modules read files of the user's own


def info_of(config: Config, data: Data) -> ModelInfo:
    """Return what a run's model file says of its model."""
    d, m = config.dataset, config.model
    reads = str(d.own.get("_target_")).startswith(READERS)  # other options may hold paths
    classes = [*data.class_names] or None
    info = ModelInfo(
        dataset=asdict(replace(d, root=None, classes=classes, own=d.own if reads else {})),
        model=asdict(replace(m, file=None, sha256=None, new=None)),
        adapter=dict(config.adapter),
        objective=dict(config.objective),
        seed=config.seed,
        # A table's least and largest values may be a person's; its columns tell enough.
        inputs=kinds_of(data.train.inputs, LOOKED_AT if data.columns is None else 0),
        transform=saved(data.transform),
        classes=data.classes,
        class_names=[*data.class_names],
        columns=None if data.columns is None else data.columns.to_json(),
        batch=evaluation_batch(objective_of(config), config.batch_size),
        personal=config.personal,
    )
    words = (*config.packages, *(name for _, _, name in _named(info)))
    tops = dict.fromkeys(re.split("[@.]", word)[0] for word in words)
    return replace(info, packages=[marked(top) for top in tops if top != "edgewire"])


def _named(info: ModelInfo) -> list[tuple[str, str, str]]:
    """Return group, key and name of each class that a description names."""
    groups = ("model", "adapter", "objective", "transform", "dataset")
    every = ((group, targets_in(group, getattr(info, group))) for group in groups)
    return [(group, key.replace(".own.", "."), name) for group, each in every for key, name in each]


def predictor_of(path: str, packages: Sequence[str] = ()) -> Predictor:
    """Return the model in a run's folder, or in a model's file, for use.

    `packages`: packages that a file of somebody else may name, or classes in them. Raises
    `TaskError` or `ConfigError` in one line for a file that cannot be used, and for a class that it
    may not name.
    """
    info, tensors = read_model(path)
    try:
        _expect_trusted(info, packages)
        if info.transform is None:
            raise TaskError(
                "the transform of its data is in no file: make it a function of a module, or a "
                "dataclass, and train again"
            )
        config = Config(
            dataset=DatasetConfig(**info.dataset),
            model=ModelConfig(**{**info.model, "file": None}),
            adapter=info.adapter,
            objective=info.objective,
            seed=info.seed,
        )
        none, transform = Split(samples_of(info.inputs, 0)), restored(info.transform)
        model = model_of(config, Data(none, none, transform, info.classes))
        model.load_state_dict(tensors)
        warn_of_personal(path, info.personal)
        return Predictor(info, model, transform, objective_of(config), partial(data_of, config))
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
    for group, key, name in _named(info):
        listed = name in TRANSFORMS if group == "transform" else is_ours(group, name)
        top = name.partition(".")[0]
        if not listed and not grants.allows(name) and top not in packages:
            why = "no files of yours with the run's contents"
            if top in words.values():
                source_files(top)  # raises an error that says where a lost package is looked up
                why = f"{abbreviate(top)} has changed since the run"
            raise ConfigError(
                f"{key}={abbreviate(name)}: its package is not EdgeWire's, and {why}; "
                f"if you trust it, name it: --packages={abbreviate(top)} "
                f"(in Python: load_model(RUN, packages=['{abbreviate(top)}']))"
            )
    tops = dict.fromkeys(name.partition(".")[0] for name in (*own, *packages))
    import_packages([name for name in tops if name not in sys.modules])
