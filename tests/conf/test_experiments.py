"""Every experiment's cases compose to a configuration that is accepted, and say how to be run."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from conf.build import codec_of, downlink_of
from conf.check import check_target
from conf.load import HERE, to_config
from conf.sweeper import split_case

FOLDER = Path(__file__).parents[2] / "conf" / "experiment"


@pytest.fixture(scope="module", autouse=True)
def hydra():
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(HERE), version_base="1.3"):  # once: 60 ms each time
        yield


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.yaml")))
def test_every_case_is_accepted(name):
    sweeper = OmegaConf.select(OmegaConf.load(FOLDER / f"{name}.yaml"), "hydra.sweeper") or {}
    params = {key: str(values).split(",") for key, values in sweeper.get("params", {}).items()}
    for number, case in enumerate(sweeper.get("cases", [""])):
        words = split_case(case)
        given = {word.split("=")[0] for word in words}
        # every value once or more, if there are as many cases
        free = [f"{k}={v[number % len(v)]}" for k, v in params.items() if k not in given]
        config = to_config(compose("config", [f"experiment={name}", *words, *free]))
        check_target("partition", config.partition)
        assert codec_of(config)
        downlink_of(config)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_it_says_what_it_is_and_that_it_is_a_sweep(path):
    head = path.read_text().split("defaults:")[0]
    sweep = OmegaConf.select(OmegaConf.load(path), "hydra.sweeper") is not None
    assert head.count("# ") > 1
    assert ("-m" in head) is sweep
