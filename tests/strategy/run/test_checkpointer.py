"""What a resumed run compares with the configuration of its checkpoint."""

import json

from edgewire.strategy.run.checkpointer import _expect_same, _words
from tests.runs import configured


def test_options_of_a_later_version_do_not_hinder_a_resume(tmp_path):
    config = configured("algorithm=edgewire_fixed")
    before = json.loads(_words(config))
    del before["fidelity"], before["compression"]["energy"]
    _expect_same(tmp_path, config, before, nodes=True)
