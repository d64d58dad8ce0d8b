"""What the tests leave out of Hydra's composing changes nothing that it makes."""

import pytest
from hydra.errors import HydraException
from omegaconf import OmegaConf

from conf.load import HERE, compose_config
from tests.composing import composing

PRESETS = sorted(path.stem for path in (HERE / "algorithm").glob("*.yaml"))
WORDS = [
    *([f"algorithm={name}"] for name in PRESETS[::3]),
    ["experiment=esgd_table2", "strategy/optimizer=momentum", "lr=0.01", "network=lte"],
    ["compression=topk", "downlink=f2i", "+dataset.more=[1]", "~screen.weight"],
    ["algorithm=nothing"],
    ["rounds=many", "nodes.more=1"],
    ["hydra.searchpath=[/nowhere]", "algorithm=esgd"],
]


def made(words):
    """Return what the words make, or what is said of them."""
    try:
        return OmegaConf.to_yaml(compose_config(words))
    except HydraException as error:
        return str(error)


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_what_is_composed_faster_is_the_same(words, recwarn):
    with composing(faster=False):
        plain = made(words)
    with composing(faster=True):
        assert made(words) == plain
