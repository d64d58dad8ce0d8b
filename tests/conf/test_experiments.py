"""Cases of every experiment compose to valid configurations; each file has a description."""

import re
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from edgewire.conf.check import check_target, codec_of, downlink_of
from edgewire.conf.sweeper import jobs_of
from tests.runs import configured

LARGE = 8000  # bytes of an experiment whose cases take more than 3 s
NUMBER = r"=\d[\d.e-]*$"  # one value above 0 of an option stands for others
FOLDER = Path(__file__).parents[2] / "conf" / "experiment"


def values_of(key, text):
    """Return the values of a parameter of a sweep."""
    (word,) = OverridesParser.create().parse_overrides([f"{key}={text}"])
    return list(word.sweep_string_iterator()) if word.is_sweep_override() else [text]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.stem, marks=[pytest.mark.system] * (path.stat().st_size > LARGE))
        for path in sorted(FOLDER.glob("*.yaml"))
    ],
)
def test_cases_with_all_words_of_the_experiment_are_accepted(name):
    sweeper = OmegaConf.select(OmegaConf.load(FOLDER / f"{name}.yaml"), "hydra.sweeper") or {}
    params = {key: values_of(key, text) for key, text in sweeper.get("params", {}).items()}
    cases = [re.sub(r"\b(seed=\d+),[\d,]+", r"\1", case) for case in sweeper.get("cases", [""])]
    jobs = jobs_of({"cases": cases}, [])
    jobs = [(words, {re.sub(NUMBER, "=0", word) for word in words}) for words in jobs]
    unseen, tried = {word for _, kinds in jobs for word in kinds}, 0
    # Enough cases for each value of a parameter, but seeds, which are numbers like each other.
    enough = max((len(values) for key, values in params.items() if key != "seed"), default=1)
    while unseen or tried < enough:
        words, kinds = max(jobs, key=lambda job: len(unseen & job[1]))
        unseen -= kinds
        given = {word.split("=")[0] for word in words}
        # each value occurs at least once
        free = [f"{k}={v[tried % len(v)]}" for k, v in params.items() if k not in given]
        config = configured(f"experiment={name}", *words, *free)
        tried += 1
        check_target("partition", config.partition)
        assert codec_of(config)
        downlink_of(config)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_an_experiment_has_a_description_and_says_that_it_is_a_sweep(path):
    head = path.read_text().split("defaults:")[0]
    sweep = OmegaConf.select(OmegaConf.load(path), "hydra.sweeper") is not None
    assert head.count("# ") > 1
    assert ("-m" in head) is sweep
