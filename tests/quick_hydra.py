"""Makes the tests' thousands of configurations take half the time, with equal results.

It caches files and values that Hydra reads or computes again each time, and skips values that no
caller needs. `tests/test_quick_hydra.py` compares the results.
"""

import copy
import functools
import pickle

import yaml
from hydra import version
from hydra._internal import config_repository, defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra.core.object_type import ObjectType
from omegaconf import DictConfig, ListConfig, OmegaConf, UnionNode, base
from omegaconf import omegaconf as writing
from omegaconf._utils import OmegaConfDumper

from edgewire.conf.classes import HERE

UNCHANGED = str(HERE), "hydra.conf"  # the files there do not change
SCHEMA = "structured"  # the source of classes, which does not change after imports
OURS = (
    "edgewire.conf.schema",
    "types",
)  # modules of our dataclasses; "types": those made at run time
_map = defaults_list._create_interpolation_map  # noqa: SLF001
_load = config_repository.ConfigRepository.load_config
_composed = ConfigLoaderImpl._compose_config_from_defaults_list  # noqa: SLF001
_mode = Hydra.get_mode
_read, _whole = {}, {}


def choices(overrides, defaults, self_added):
    """Return the choices that interpolations in a defaults list may name; empty if it has none."""
    if any(each.is_interpolation() for each in defaults):
        return _map(overrides, defaults, self_added)
    return OmegaConf.create()


def load(self, config_path):
    """Load a configuration file; return a copy if the file was read before."""
    source = self._find_object_source(config_path=config_path, object_type=ObjectType.CONFIG)
    if source is None or source.path not in UNCHANGED:
        return _load(self, config_path)
    where = source.path, config_path
    if where not in _read:
        _read[where] = pickle.dumps(_load(self, config_path))
    return pickle.loads(_read[where])


def begin(self, delegate):
    """Prepare Hydra's cache of files with a shallow copy of `delegate`; Hydra makes a deep copy.

    A shallow copy suffices: Hydra replaces the list of sources and never changes its items.
    """
    self.delegate, self.cache = copy.copy(delegate), {}


_structured = OmegaConf.structured
_made = functools.cache(_structured)


def structured(found, parent=None, flags=None):
    """Return a configuration of a dataclass; a copy for one of ours that was made before."""
    if isinstance(found, type) and found.__module__ in OURS and parent is flags is None:
        return copy.deepcopy(_made(found))
    return _structured(found, parent, flags)


def composed(self, defaults, repo):
    """Compose the files of a defaults list; return a copy if they were composed before."""
    if any(
        source.path not in UNCHANGED and source.scheme() != SCHEMA for source in repo.get_sources()
    ):
        return _composed(self, defaults, repo)
    if (key := repr(defaults)) not in _whole:
        _whole[key] = _composed(self, defaults, repo)
    return copied(_whole[key], {})


def mode(self, config_name, overrides):
    """Return the mode that a configuration chooses; compose none where no file or word has one."""
    chosen = "hydra.mode", "hydra=", "experiment"
    if config_name == "config" and not any(part in word for word in overrides for part in chosen):
        return None
    return _mode(self, config_name, overrides)


def copied(node, memo):
    """Return a deep copy of a node of OmegaConf, which has the same parent."""
    made = object.__new__(type(node))
    own, metadata = made.__dict__, copy.copy(node.__dict__["_metadata"])
    own.update(node.__dict__)
    own["_metadata"] = metadata
    metadata.flags = dict(metadata.flags) if metadata.flags else {}
    metadata.resolver_cache = copy.deepcopy(metadata.resolver_cache, memo)
    if (cache := own["_flags_cache"]) is not None:
        own["_flags_cache"] = dict(cache)
    content = own.get("_content")  # a ValueNode has none
    if isinstance(content, dict):
        own["_content"] = {key: child(each, made, memo) for key, each in content.items()}
    elif isinstance(content, list):
        own["_content"] = [child(each, made, memo) for each in content]
    return made


def child(node, parent, memo):
    """Return a deep copy of a node, with another parent."""
    made = copy.deepcopy(node, memo) if type(node) is UnionNode else copied(node, memo)
    made.__dict__["_parent"] = parent
    return made


def set_parents(self):
    """Make each node of a tree the parent of its children, and forget the flags they inherited."""
    nodes = [self]
    while nodes:
        parent = nodes.pop()
        content = parent.__dict__.get("_content")
        if isinstance(content, dict):
            content = content.values()
        elif isinstance(content, base.Node):  # of a UnionNode
            content = [content]
        elif not isinstance(content, list):
            continue
        for node in content:
            node.__dict__["_parent"], node.__dict__["_flags_cache"] = parent, None
            nodes.append(node)


class Dumper(getattr(yaml, "CDumper", yaml.Dumper)):
    """Writes YAML as OmegaConf does, by libyaml."""


Dumper.add_representer(str, OmegaConfDumper.str_representer)


QUICK = [
    (yaml, "SafeLoader", getattr(yaml, "CSafeLoader", yaml.SafeLoader)),
    (version, "_get_version", functools.cache(version._get_version)),  # noqa: SLF001
    (defaults_list, "_create_interpolation_map", choices),
    (config_repository.ConfigRepository, "load_config", load),
    (config_repository.CachingConfigRepository, "__init__", begin),
    (base, "parse", functools.cache(base.parse)),
    (OmegaConf, "structured", staticmethod(structured)),
    (ConfigLoaderImpl, "_compose_config_from_defaults_list", composed),
    (Hydra, "get_mode", mode),
    (DictConfig, "__deepcopy__", copied),
    (ListConfig, "__deepcopy__", copied),
    (base.Box, "_re_parent", set_parents),
    (writing, "get_omega_conf_dumper", lambda: Dumper),
]
PLAIN = [(where, name, getattr(where, name)) for where, name, _ in QUICK]


def quicken():
    """Install the faster functions in this process and the processes that it forks."""
    for where, name, value in QUICK:
        setattr(where, name, value)
