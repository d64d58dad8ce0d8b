"""What a resumed run compares with the configuration of its checkpoint."""

import json

from edgewire.strategy.run.checkpointer import config_words, expect_same_config
from tests.runs import configured


def test_options_of_a_later_version_do_not_hinder_a_resume(tmp_path):
    config = configured("algorithm=edgewire_fixed")
    before = json.loads(config_words(config))
    del before["fidelity"], before["compression"]["energy"]
    expect_same_config(tmp_path, config, before, nodes=True)
