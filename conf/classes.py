"""Which classes a group's `_target_` may name, and the import of the named class.

Any run may name a class that a YAML file of the group names, or that the group's library module
(`KINDS`) has. The name must be that of a class of the group's kind, in the package that defines it.
It must not be a function, another package's class that a module imports, or an attribute of a
class. `dataset` and `model` may name any callable instead (`callable_of`).
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from sys import modules
from types import BuiltinFunctionType, FunctionType, UnionType
from typing import Any, Union, get_args, get_origin

from omegaconf import OmegaConf

import edgewire.task.lazy_imports  # noqa: F401  # before anybody imports flwr_datasets
from edgewire.conf.schema import ConfigError

HERE = Path(__file__).parent
# Group -> the library module with its classes, and the name of their base class there.
KINDS = {
    "strategy": ("flwr.serverapp.strategy", "Strategy"),
    "adapter": ("edgewire.task.finetuning", "Adapter"),
    "local": ("edgewire.task.local", "LocalAlgorithm"),
    "objective": ("edgewire.task.objectives", "Objective"),
    "optimizer": ("torch.optim", "Optimizer"),
    "schedule": ("torch.optim.lr_scheduler", "LRScheduler"),
    "partition": ("flwr_datasets.partitioner", "Partitioner"),
}
GROUPS = tuple(KINDS)


def nested(key: str, node: Any) -> Iterator[tuple[str, Any]]:
    """Yield `node` and all values inside it, at any depth, each with its dotted key.

    `key`: the key of `node`. The elements of a list have the list's key.
    """
    yield key, node
    if isinstance(node, Mapping):
        for name, value in node.items():
            yield from nested(f"{key}.{name}", value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from nested(key, value)


def targets_in(group: str, node: Any) -> Iterator[tuple[str, str]]:
    """Yield the key and the name of each class that a group's `node` names, at any depth."""
    for key, name in nested(group, node):
        if key.endswith("._target_"):
            yield key, str(name)


def is_ours(group: str, name: str) -> bool:
    """Return whether every run may name this class.

    Every run may name a class that one of the group's YAML files names, and a class of the group's
    library module (`KINDS`).
    """
    module, _, last = name.rpartition(".")
    listed = (
        group in KINDS
        and module == KINDS[group][0]
        and re.fullmatch(r"[A-Za-z]\w*", last) is not None
    )
    inner = (path for path in (HERE / group).iterdir() if path.is_dir())
    return listed or any(name in named(folder) for folder in (HERE / group, *inner))


@functools.cache
def named(folder: Path) -> frozenset[str]:
    """Return all values of `_target_` in the YAML files of a folder."""
    pattern = re.compile(r"^\s*_target_:\s*([\w.]+)", re.MULTILINE)
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.yaml"))]
    return frozenset(name for text in texts for name in pattern.findall(text))


@functools.cache
def presets_of(folder: Path) -> frozenset[tuple[str, str]]:
    """Return the keys of a folder's YAML files with the `repr` of their values."""
    found = set()
    for file in folder.glob("*.yaml"):
        node = OmegaConf.to_container(OmegaConf.load(file))
        found |= {(str(key), repr(value)) for key, value in node.items()}  # type: ignore[union-attr]
    return frozenset(found)


def target_of(group: str, name: str) -> type:
    """Return the class that a group's `_target_` names.

    Raises `ConfigError` if it is not a class of the group's kind, or cannot be imported.
    """
    found = _class(group, name)
    if name not in named(HERE / group):
        module, base = KINDS[group]
        if not issubclass(found, getattr(import_module(module), base)):
            raise ConfigError(f"{group}._target_={name} is no {base}: derive it from {module}'s")
    return found


def inner_target_of(key: str, name: str, annotation: Any) -> type:
    """Return the class that an option's own `_target_` names; `annotation`: the option's type.

    Raises `ConfigError` like `target_of`.
    """
    union = get_origin(annotation) in (Union, UnionType)
    kinds = [each for each in (get_args(annotation) if union else (annotation,)) if _is_kind(each)]
    if not kinds:
        raise ConfigError(f"{key} is not an object's place: no class is declared for it")
    found = _class(key, name)
    if not issubclass(found, tuple(kinds)):
        wanted = " or ".join(each.__name__ for each in kinds)
        raise ConfigError(f"{key}._target_={name} is no {wanted}")
    return found


def _is_kind(each: Any) -> bool:
    """Return whether an annotation is a class of which a configuration may make objects."""
    plain = ("builtins", "collections.abc", "types", "typing")
    protocol = getattr(each, "_is_protocol", False)  # almost any class would satisfy a protocol
    return isinstance(each, type) and each.__module__ not in plain and not protocol


def callable_of(key: str, name: str, *, submitted: bool = False) -> Callable[..., Any]:
    """Return a callable by its name: any object, but no function or class of another package.

    A module of a package that a node allows may import such functions, as `os.system`. A
    `submitted` run may name only what the package defines: a class, a function, or an object whose
    class and `__call__` the package defines, so no `functools.partial`.
    """
    found = _imported(key, name)
    if not callable(found):
        raise ConfigError(f"{key}._target_={name} cannot be called")
    definition = isinstance(found, type | FunctionType | BuiltinFunctionType)
    kind: Any = found if definition else type(found)
    if submitted or definition:
        _expect_defined_there(key, name, kind.__module__)
    if submitted and not isinstance(found, type | BuiltinFunctionType):
        called = found if definition else kind.__call__
        scope = getattr(inspect.unwrap(called), "__globals__", {})  # of the code that a call runs
        _expect_defined_there(key, name, scope.get("__name__"))
    return found  # type: ignore[no-any-return]


def _class(key: str, name: str) -> type:
    found = _imported(key, name)
    if not isinstance(found, type):
        raise ConfigError(f"{key}._target_={name} is no class")
    _expect_defined_there(key, name, found.__module__)
    return found


def _expect_defined_there(key: str, name: str, module: str | None) -> None:
    """Raise `ConfigError` for an object of another package's `module`, which is only imported.

    Each subpackage of `edgewire` counts as a package.
    """
    words = 2 if name.startswith("edgewire.") else 1
    if str(module).split(".")[:words] != name.split(".")[:words]:
        last = name.rpartition(".")[2]
        there = hasattr(modules.get(str(module)), last)
        cure = f"give {key}._target_={module}.{last}" if there else "define it in your package"
        raise ConfigError(f"{key}._target_={name} is of {module}: {cure}")


def _imported(key: str, name: str) -> Any:
    """Return the attribute of a module by a dotted name, not an attribute of an attribute."""
    module, _, last = name.rpartition(".")
    try:
        return getattr(import_module(module), last)
    except Exception as error:  # importing a module can raise anything
        raise ConfigError(f"{key}._target_={name} cannot be imported", error) from error
