"""docs/configuration.md matches the code, and its presets match what Hydra composes."""

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from docs.configuration import COMMAND, PAGE, page, preset
from edgewire.conf.load import HERE
from edgewire.report.runs import as_text


def test_the_page_is_up_to_date():
    new, old = page().splitlines(), PAGE.read_text().splitlines()
    changed = [(i, b) for i, (a, b) in enumerate(zip(old, new, strict=False), 1) if a != b]
    where = f"line {changed[0][0]} should be {changed[0][1]!r}" if changed else "its length"
    assert new == old, f"docs/configuration.md is out of date ({where}); run: {COMMAND}"


@pytest.mark.parametrize("name", ["dgc", "fedbuff", "fedavg_topk"])
def test_a_preset_sets_the_documented_overrides(name):
    words = [f"{key}={as_text(value)}" for key, value in preset(name).items()]
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(HERE), version_base="1.3"):
        by_name = OmegaConf.to_container(compose("config", [f"algorithm={name}"]), resolve=True)
        by_hand = OmegaConf.to_container(compose("config", ["~algorithm", *words]), resolve=True)
    assert by_hand == by_name
