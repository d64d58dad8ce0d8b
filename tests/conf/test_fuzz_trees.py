"""Random trees of texts that a hostile server submits: 600 by default, more with --trees.

A submission sets the values of ten keys to trees, as JSON in `config` or as words in `overrides`.
The texts are made of the parts of references, resolvers, quotes and escapes. Neither the
configuration, nor an error, nor the log may show the value of an environment variable. None of
OmegaConf's own resolvers may be called. Each text is loaded as it is, or it is refused. The seeds
are fixed: a failure shows the trees.
"""

import copy
import functools
import json
import random
import shlex
import sys
from dataclasses import asdict

import pytest
from omegaconf import OmegaConf
from omegaconf.resolvers import oc

from edgewire.conf import load
from edgewire.conf.load import load_config
from edgewire.conf.schema import ConfigError
from edgewire.conf.trust import OF_A_KEY
from edgewire.task.override_text import quoted
from tests.conf.hostile import HIDDEN, SECRET, plain, submitted
from tests.runs import composed

PIECES = (
    *("$", "{", "}", "${", "\\", "\\\\", "'", '"', ":", ",", ".", " ", "\n", "[", "]", "é", "x"),
    *("oc.env:SECRET", "{oc.env:SECRET}", "${oc.env:SECRET}", "oc.decode:", "oc.create:", "now:"),
    *("oc.select:", "hydra:runtime.cwd", "oc.dict.values:model", "device", "{device}", "lr", "???"),
    *("${device}", "${model.name}", "${network.waiting}", "${dataset.name}", "${lr}", "${.a}"),
)
STARTS = ("$", "${", "\\$", "${oc.env:", "${oc", "$\\")  # of a text that another text completes
ENDS = ("{oc.env:SECRET}", "{oc.select:lr}", "{device}", "oc.env:SECRET}", "SECRET}", ".env:lr}")
ONES = ("device", "partition.text", "model.name", "strategy.weighted_by_key")
LISTS = ("dataset.classes", "compression.exact", "gradients.exact", "trainable")
ANY = ("partition.a", "partition.b", "engine.a", "engine.b")  # they take any value while loading
TREES = 10  # trees in a submission
RESOLVERS = {
    **{f"oc.{name}": getattr(oc, name) for name in ("create", "decode", "env", "select")},
    **{f"oc.dict.{name}": getattr(oc.dict, name) for name in ("keys", "values")},
}
HYDRAS_OWN = 20  # every 20th submission of words is composed by Hydra itself, which takes 30 ms


def leaves(node, prefix=""):
    """Yield the dotted keys of all values in nested mappings."""
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


class Submission:
    """Keys with trees of texts, drawn from a seed."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.rude = seed % 6 == 0  # with texts that no submitted run may have
        keys = self.draw.sample(ONES + LISTS + ANY, TREES)
        if seed % 6 == 1:  # any keys, most of which take no text
            keys[0] = self.draw.choice([*leaves(plain()), "x.y", "packages", "strategy.pushes"])
        self.trees = {key: self.tree(key) for key in keys}
        # Two texts that are a resolver only if they are put together.
        start, place = self.draw.choice(ONES), self.draw.choice(LISTS + ANY)
        head, end = self.draw.choice(STARTS), self.draw.choice(ENDS)
        head, end = (head, end) if self.rude else (STARTS[0], self.draw.choice(ENDS[:3]))
        self.trees |= {start: head, place: [f"${{{start}}}{end}".replace("SECRET", SECRET)]}

    def text(self, key):
        """Return a text; without rude ones, no submission is refused for a reference."""
        while True:
            text = "".join(self.draw.choices(PIECES, k=self.draw.randint(1, 6)))
            left = text if key in ONES else OF_A_KEY.sub("", text)  # references form no circle
            if self.rude or not ("${" in left or "${." in text or text == "???"):
                return text.replace("SECRET", SECRET)

    def tree(self, key, depth=0):
        if key in LISTS:
            return [self.text(key) for _ in range(self.draw.randint(1, 2))]
        kind = self.draw.random() if key in ANY and depth < 3 else 1
        if kind < 0.3:
            return [self.tree(key, depth + 1) for _ in range(self.draw.randint(1, 2))]
        if kind < 0.6:
            return {self.draw.choice("abc"): self.tree(key, depth + 1) for _ in range(2)}
        return self.text(key)

    def config(self):
        """Return the trees within a whole configuration, as an honest server sends it."""
        config = copy.deepcopy(plain())
        for key, value in self.trees.items():
            *parents, last = key.split(".")
            node = config
            for name in parents:
                node = node.setdefault(name, {})
            node[last] = value
        return submitted(config)

    def overrides(self):
        """Return the trees as the words of a command line."""
        words = [f"++{key}={self.word(value)}" for key, value in self.trees.items()]
        if self.rude:
            words += [f"~{self.draw.choice(ONES)}{self.draw.choice(('', '=${lr}'))}"]
        return {"overrides": shlex.join(words)}

    def word(self, value):
        """Return a value in one of the ways that Hydra's parser reads."""
        if isinstance(value, list):
            return f"[{','.join(map(self.word, value))}]"
        if isinstance(value, dict):
            return f"{{{','.join(f'{key}:{self.word(each)}' for key, each in value.items())}}}"
        way = self.draw.random() if self.rude else 0
        if way < 0.7:
            return quoted(value)
        return value if way < 0.8 else json.dumps(value) if way < 0.9 else value.replace("{", "\\{")


def loaded(config, key):
    """Return the value at a dotted key of a loaded configuration."""
    found = asdict(config)
    for name in key.split("."):
        found = found.get(name, found.get("own"))
    return found


@pytest.fixture
def called(monkeypatch):
    """Set a secret; yield the list of OmegaConf's own resolvers that are called."""
    found = []

    def noting(name, resolve):
        @functools.wraps(resolve)  # OmegaConf reads the signature
        def noted(*given, **options):
            found.append(name)
            return resolve(*given, **options)

        return noted

    monkeypatch.setenv(SECRET, HIDDEN)
    for name, resolve in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, noting(name, resolve), replace=True)
    yield found
    for name, resolve in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, resolve, replace=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("way", ["config", "overrides"])
def test_no_text_of_another_machine_is_evaluated(way, called, caplog, monkeypatch, pytestconfig):
    hydras, accepted = load.compose_config, 0
    count = pytestconfig.getoption("--trees") // (2 * TREES)
    for seed in range(count):
        submission = Submission(seed)
        values = getattr(submission, way)()
        fast = seed % HYDRAS_OWN and "~" not in values.get("overrides", "")
        compose = (lambda words: composed(*words)) if fast else hydras
        monkeypatch.setattr(load, "compose_config", compose)
        try:
            made = load_config(values, 2)
            told = repr(made)
        except ConfigError as error:
            made, told = None, str(error)
        where = f"seed {seed}: {submission.trees} gave {told}"
        assert HIDDEN not in told, where
        assert HIDDEN not in caplog.text, where
        assert not called, where
        assert "\n" not in told, where
        accepted += made is not None
        for key, value in submission.trees.items() if made else ():
            references = way == "overrides" and "${" in str(value)
            if key not in ("dataset.root", "model.file") and not references:
                assert "$" not in str(value) or loaded(made, key) == value, (key, where)
    assert accepted > count // 4, "few submissions were loaded: the test tests little"
    print(f"{count * TREES} trees as {way}, {accepted * TREES} loaded", file=sys.stderr)
