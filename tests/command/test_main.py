"""Hydra's options may stand anywhere in the command line; an unknown option gives one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.command.saved_config import command_line, options_first
from edgewire.conf.schema import ConfigError

OPTIONS = [["-m"], ["--multirun"], ["--config-name", "config"], ["--cfg", "job"], ["--resolve"]]
OVERRIDES = st.lists(st.sampled_from(["nodes=2", "seed=0,1", "~model", "+a=1", "nodes=2", "x"]))


@given(options=st.lists(st.sampled_from(OPTIONS), unique_by=tuple), words=OVERRIDES, data=st.data())
def test_options_may_stand_anywhere(options, words, data):
    mixed = data.draw(st.permutations([*options, *([word] for word in words)]))
    given, ordered = options_first([word for part in mixed for word in part])
    said = [word for part in mixed if len(part) == 1 and part not in OPTIONS for word in part]
    assert given.overrides == said
    assert ordered[len(ordered) - len(said) :] == said
    first = [word for part in mixed if part in OPTIONS for word in part]
    assert ordered[: len(first)] == first


@pytest.mark.parametrize("words", [["--wrokers", "2"], ["nodes=2", "--rounds=3"], ["--cfg", "x"]])
def test_an_unknown_option_gives_one_line(words, capsys):
    with pytest.raises(ConfigError, match=r"--(wrokers|rounds|cfg).*--hydra-help the options$"):
        command_line(words)
    assert capsys.readouterr() == ("", "")
