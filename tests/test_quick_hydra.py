"""The tests' faster composition gives the same configuration as Hydra alone."""

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

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
    return OmegaConf.to_yaml(config), OmegaConf.to_yaml(own, resolve=True), typed


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
