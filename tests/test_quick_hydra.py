"""The tests' faster composition gives the same configuration as Hydra alone."""

# ruff: noqa: SLF001

import copy
import json

import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, ListConfig, OmegaConf

from edgewire.conf.classes import HERE
from edgewire.conf.load import compose_config, to_config
from tests.quick_hydra import PLAIN


def made(words):
    """Return a configuration as text, unresolved with Hydra's part; and resolved, typed without it.

    Hydra's part is not resolved, because it refers to the time.
    """
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(HERE), version_base="1.3"):
        config = compose("config", overrides=list(words), return_hydra_config=True)
    own = OmegaConf.create({key: value for key, value in config.items() if key != "hydra"})
    typed = to_config(compose_config(list(words)))
    texts = OmegaConf.to_yaml(config), OmegaConf.to_yaml(own, resolve=True)
    # libyaml breaks long lines elsewhere
    return *(json.dumps(yaml.safe_load(text)) for text in texts), nodes_of(config), typed


def nodes_of(node, parent=None):
    """Return the nodes of a configuration, with their types and flags; assert their parents."""
    assert node._get_parent() is parent
    about = {**vars(node._metadata), "resolver_cache": None}  # which holds the time
    found = [(type(node).__name__, repr(about), node._get_flag("readonly"))]
    if isinstance(node, DictConfig) and isinstance(node._content, dict):
        found += [nodes_of(each, node) for each in node._content.values()]
    elif isinstance(node, ListConfig) and isinstance(node._content, list):
        found += [nodes_of(each, node) for each in node._content]
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "words",
    [
        [],
        ["algorithm=esgd", "strategy/optimizer=momentum", "lr=0.3"],
        ["algorithm=split_backprop", "compression=int4", "compression@gradients=f2i"],
        ["experiment=methods", "strategy=fedadam", "downlink=topk", "downlink.density=0.5"],
        ["hydra/help=default", "+hydra.job.env_copy=[HOME]", "network=lte", "schedule=cosine"],
    ],
    ids=" ".join,
)
def test_the_faster_composition_equals_hydras(words, monkeypatch):
    quick = made(words)
    assert made(words) == quick  # no cached value was changed
    for where, name, value in PLAIN:
        monkeypatch.setattr(where, name, value)
    assert made(words) == quick


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ([], None),
        (["rounds=3", "hydra.run.dir=x"], None),
        (["hydra.mode=MULTIRUN"], "MULTIRUN"),
        (["++hydra.mode=RUN"], "RUN"),
    ],
)
def test_a_mode_that_a_word_chooses_is_found(words, mode):
    with initialize_config_dir(str(HERE), version_base="1.3"):
        found = GlobalHydra.instance().hydra.get_mode("config", words)
    assert (found and found.name) == mode


def test_a_copy_shares_no_node_and_keeps_its_flags():
    given = OmegaConf.create({"a": {"b": [1, {"c": "${a.e}"}], "d": None, "e": 1}})
    OmegaConf.set_struct(given.a, True)
    OmegaConf.set_readonly(given.a.b, True)
    made, before = copy.deepcopy(given), nodes_of(given)
    assert nodes_of(made) == before
    OmegaConf.set_readonly(made.a.b, False)
    made.a.b[1].c, made.a.d = 5, 6
    assert (given.a.b[1].c, given.a.d, OmegaConf.is_readonly(given.a.b)) == (1, None, True)
    assert nodes_of(given) == before
    assert OmegaConf.is_struct(made.a)
    made.a._set_parent(None)
    made.a.b.__dict__["_flags_cache"] = {"readonly": True}
    made.merge_with({"a": {"d": {"f": [7]}}})  # corrects parents, and reads flags again
    assert nodes_of(made)
    assert not OmegaConf.is_readonly(made.a.b)
    assert made.a.d.f == [7]
