"""Overrides of a submitted run set choices and values, but not Hydra's settings or file paths."""

import shlex

import pytest
from hydra.errors import HydraException
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from edgewire.conf.load import HERE, compose_config, load_config
from edgewire.conf.schema import ConfigError
from edgewire.conf.trust import expect_plain, submitted_overrides
from tests.conf.hostile import HIDDEN, WORDS, put


@pytest.mark.parametrize("word", WORDS)
def test_overrides_that_reach_for_the_machine_give_one_line(bait, word):
    quoted = shlex.quote(put(word, bait))
    with pytest.raises(ConfigError) as caught:
        load_config({"config": "", "overrides": quoted}, 2)
    told = str(caught.value)
    assert HIDDEN not in told
    assert str(HERE) not in told
    assert "\n" not in told
    assert len(told) < 600


@pytest.mark.parametrize(
    "word",
    ["dataset.classes=${spy:x}", "dataset.classes=$\\{spy:x\\}", "model=$\\{spy:x\\}",
     "device='${spy:x}'", "+network.classes={a:'${spy:x}'}", "compression.exact=['${spy:x}']",
     "lr=choice('${spy:x}','${spy:y}')"],
)  # fmt: skip
def test_no_override_calls_a_resolver_even_while_composing(asked, word):
    with pytest.raises(ConfigError):
        load_config({"overrides": shlex.quote(word)}, 2)
    assert not asked


@pytest.mark.parametrize("word", ["lr=0.1,0.2", "model=glob(*)", "seed=range(1,9)"])
def test_a_submitted_run_cannot_be_a_sweep(word):
    with pytest.raises(ConfigError, match="it is one run, and no sweep"):
        submitted_overrides([word])


def test_unclosed_quotes_give_one_line():
    with pytest.raises(ConfigError, match="overrides"):
        load_config({"overrides": "lr='0.1"}, 2)


@pytest.mark.parametrize(
    "word",
    ["algorithm=fedavg_f2i", "strategy/optimizer=momentum", "compression@gradients=topk", "lr=0.3",
     "+optimizer.amsgrad=true", "++rounds=3", "strategy.cuts=[1,3]", "~experiment", "model=mlp",
     "+network.classes={own:{share:1,speed:2}}", "dataset.classes=['a b',c]", "experiment=null",
     "dataset.root=photos/2024", "algorithm='fedavg'", "strategy.quorum=null", "nodes=",
     "compression.exact=['head.*']"],
)  # fmt: skip
def test_choices_and_values_are_used_unchanged(word):
    assert submitted_overrides([word]) == [word]


TOKENS = """
    hydra . / @ = ~ + ++ : strategy model dataset.root searchpath file:// .. ${ $\\{ } oc.env:SECRET
    ' " \\ [ ] { , choice( ) glob(*) -- null mlp _target_ optimizer 0.1 x
"""


@given(st.lists(st.sampled_from(TOKENS.split()), min_size=1, max_size=7))
def test_no_override_changes_hydras_settings_or_paths(tokens):
    """An accepted override leaves Hydra's settings as they are, and calls no resolver."""
    word = put("".join(tokens), "")
    try:
        submitted_overrides([word])
    except (ConfigError, HydraException):
        return
    assert "hydra" not in word.partition("=")[0].replace("@", ".").replace("/", ".").split(".")
    try:
        made = compose_config([word])
    except (HydraException, OmegaConfBaseException):
        return
    expect_plain(OmegaConf.to_container(made, resolve=False))


def test_a_list_of_defaults_is_an_ordinary_value():
    with pytest.raises(ConfigError, match="there is no key defaults"):
        load_config({"overrides": "+defaults=[{hydra/launcher:x}]"}, 2)


def test_a_file_of_the_machine_cannot_be_chosen(tmp_path):
    """A submitted choice cannot be a path; Hydra alone would read that file."""
    (tmp_path / "mine.yaml").write_text("_target_: torch.optim.SGD\nmomentum: 0.125\n")
    path = "../" * 20 + str(tmp_path / "mine").lstrip("/")
    assert compose_config([f"optimizer={path}"]).optimizer.momentum == 0.125
    with pytest.raises(ConfigError, match="a group's choice is a name"):
        load_config({"overrides": f"optimizer={path}"}, 2)
