"""Hydra composes a thousand configurations in these tests: in half the time, and the very same.

What it reads or works out anew each time, whether anybody asks for it or not, is kept, or waits
until it is asked for. `tests/test_quick_hydra.py` compares.
"""

import copy
import functools
import pickle

import yaml
from hydra import version
from hydra._internal import config_repository, defaults_list
from hydra.core.object_type import ObjectType
from omegaconf import OmegaConf, base

from conf.targets import HERE

UNCHANGED = str(HERE), "hydra.conf"  # where files stay as they are
_map = defaults_list._create_interpolation_map
_load = config_repository.ConfigRepository.load_config
_read = {}


def choices(overrides, defaults, self_added):
    """Return the choices for interpolations in a list of defaults, if there are any in it."""
    if any(each.is_interpolation() for each in defaults):
        return _map(overrides, defaults, self_added)
    return OmegaConf.create()


def load(self, config_path):
    """Load a file's configuration; of one that was read before, a copy."""
    source = self._find_object_source(config_path=config_path, object_type=ObjectType.CONFIG)
    if source is None or source.path not in UNCHANGED:
        return _load(self, config_path)
    where = source.path, config_path
    if where not in _read:
        _read[where] = pickle.dumps(_load(self, config_path))
    return pickle.loads(_read[where])


def begin(self, delegate):
    """Begin with the same sources; where others take their place, it is in a new list."""
    self.delegate, self.cache = copy.copy(delegate), {}


QUICK = [
    (yaml, "SafeLoader", getattr(yaml, "CSafeLoader", yaml.SafeLoader)),
    (version, "_get_version", functools.cache(version._get_version)),
    (defaults_list, "_create_interpolation_map", choices),
    (config_repository.ConfigRepository, "load_config", load),
    (config_repository.CachingConfigRepository, "__init__", begin),
    (base, "parse", functools.cache(base.parse)),
]
PLAIN = [(where, name, getattr(where, name)) for where, name, _ in QUICK]


def quicken():
    """Let Hydra do so in this process, and in those that it forks."""
    for where, name, value in QUICK:
        setattr(where, name, value)
