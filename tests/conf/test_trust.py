"""A submitted configuration reads no environment variable, and no file outside allowed folders."""

import os
import shlex
from pathlib import Path

import pytest
from hydra.errors import HydraException
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from edgewire.conf.load import HERE, compose_config, load_config, run_config, to_config
from edgewire.conf.schema import ConfigError
from edgewire.conf.trust import (
    NodeGrants,
    expect_plain,
    is_local,
    mark_as_local,
    output_of,
    resolve_below,
    submitted_overrides,
)
from tests.conf.hostile import ASKING, HIDDEN, PATHS, SECRET, WORDS, plain, put, submitted
from tests.runs import composed


@pytest.fixture
def secret(monkeypatch):
    monkeypatch.setenv(SECRET, HIDDEN)


def changed(config, key, value):
    """Return the configuration with a value at a dotted key; the key need not exist."""
    *parents, last = key.split(".")
    node = config
    for name in parents:
        if not isinstance(node.get(name), dict):
            node[name] = {}
        node = node[name]
    node[last] = value
    return config


def told_by(values, node_config=None):
    """Return everything that a `run_config` reveals: the configuration, or the error."""
    try:
        told = repr(load_config(values, 2, node_config))
    except ConfigError as error:
        told = str(error)
    assert "\n" not in told
    return told


@pytest.mark.parametrize("text", ASKING)
@pytest.mark.parametrize("key", ["device", "strategy.pushes", "dataset.classes", "rounds"])
def test_no_resolver_is_called(secret, asked, key, text):
    for words in (text, text.replace("oc.env", "spy")):
        with pytest.raises(ConfigError) as caught:
            load_config(submitted(changed(plain(), key, put(words, ""))), 2)
        assert HIDDEN not in str(caught.value)
    assert not asked


@pytest.mark.parametrize("text", ASKING)
def test_an_interpolation_is_refused_anywhere_in_a_text(text):
    for node in (text, [text], {"a": {"b": [1, text]}}, {text: 1}):
        with pytest.raises(ConfigError, match="may name another key"):
            expect_plain(node)


def test_other_keys_may_be_named():
    expect_plain(["${lr}", "${model.lr}", "${.x}", "${a} of ${b.c}", "$", "{}", "$ {x}", 3, None])
    made = load_config({"overrides": "'device=${algorithm}' 'lr=${model.lr}'"}, 2)
    assert (made.device, made.lr) == (made.algorithm, made.model.lr)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "3", "null", '"x"', "[" * 100_000, '{"a":' * 3000, "\0", "{}", '{"lr": 1e999}',
     '{"strategy": 3}', '{"rounds": 1' + "0" * 400 + "}", '{"": ""}', '{"network": []}'],
)  # fmt: skip
def test_an_invalid_configuration_is_refused_in_one_line(text):
    with pytest.raises(ConfigError) as caught:
        load_config({"config": text}, 2)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def nested(depth):
    node = {"_target_": "flwr.serverapp.strategy.FedAvg"}
    for _ in range(depth):
        node = {"_target_": "torch.optim.SGD", "x": node}
    return node


@pytest.mark.parametrize("depth", [50, 400])
def test_deep_nesting_does_not_crash(depth):
    with pytest.raises(ConfigError):
        load_config(submitted({**plain(), "strategy": nested(depth)}), 2)


# Folders.


@pytest.fixture
def folder(tmp_path):
    """Return a folder with symbolic links: some lead outside, one to itself, one to a subfolder."""
    top = tmp_path / "data"
    (top / "in" / "deep").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (top / "out").symlink_to(tmp_path / "secret")
    (top / "up").symlink_to("..")
    (top / "chain").symlink_to("out")
    (top / "in" / "out").symlink_to("/etc")
    (top / "loop").symlink_to("loop")
    (top / "same").symlink_to("in")
    return top


@pytest.mark.parametrize("path", [*PATHS, "up", "up/secret", "/in"])
def test_a_path_outside_is_refused_without_revealing_the_folder(folder, path):
    with pytest.raises(ConfigError, match=r"^dataset\.root=") as caught:
        resolve_below(str(folder), path, "dataset.root")
    assert str(folder.parent) not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("path", ["in", "in/deep", "new/one", ".", "in/./deep", "same", ".x"])
def test_a_path_inside_is_accepted(folder, path):
    assert resolve_below(str(folder), path, "x") == str((folder / path).resolve())
    link = folder.parent / "link"
    link.symlink_to(folder)
    assert resolve_below(str(link), path, "x") == str((folder / path).resolve())


SEGMENTS = ["in", "deep", "out", "up", "loop", "chain", "same", "..", ".", "~", "new", "/", "x\x00"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(SEGMENTS), max_size=6))
def test_no_path_leaves_the_folder(folder, segments):
    try:
        found = resolve_below(str(folder), "/".join(segments), "x")
    except ConfigError:
        return
    assert Path(found).resolve().is_relative_to(folder.resolve())
    assert ".." not in segments


def test_a_nodes_data_lies_below_its_own_folder(folder, monkeypatch):
    values = submitted({**plain("dataset=mnist"), "rounds": 2})
    assert load_config(values, 2).dataset.root is None
    assert load_config(values, 2, {"data": str(folder)}).dataset.root == str(folder)
    monkeypatch.setenv("EDGEWIRE_DATA", str(folder))
    assert load_config(values, 2).dataset.root == str(folder)
    values = submitted(changed(plain("dataset=mnist"), "dataset.root", "in"))
    assert load_config(values, 2).dataset.root == str(folder / "in")
    monkeypatch.delenv("EDGEWIRE_DATA")
    assert load_config(values, 2).dataset.root == str(Path("data/in").resolve())
    assert load_config(values, 2, {"data": str(folder)}).dataset.root == str(folder / "in")


def test_results_of_a_submitted_run_lie_below_the_servers_folder(folder, monkeypatch):
    for path in ("run", "/tmp/run", "../x"):
        with pytest.raises(ConfigError, match="EDGEWIRE_OUTPUT=FOLDER"):
            output_of(submitted(plain(), path))
    monkeypatch.setenv("EDGEWIRE_OUTPUT", str(folder))
    assert output_of(submitted(plain(), "run")) == str(folder / "run")
    assert output_of(submitted(plain())) == output_of({}) == ""
    for path in ("/tmp/run", "../x", "out", "~/x"):
        with pytest.raises(ConfigError, match=r"^output=") as caught:
            output_of(submitted(plain(), path))
        assert str(folder.parent) not in str(caught.value)


# Local runs.


def test_only_the_exact_local_configuration_is_trusted(tmp_path):
    own = composed("dataset=imagefolder", f"dataset.root={tmp_path}")
    values = run_config(own, output="/anywhere")
    assert is_local(values)
    assert load_config(values, 2).dataset.root == str(tmp_path)
    assert output_of(values) == "/anywhere"
    for other in (
        {**values, "config": values["config"] + " "},
        {**values, "config": values["config"].replace(str(tmp_path), "/etc")},
        {**values, "output": "/anywhere/else"},
        {"config": values["config"]},
        {"output": values["output"]},
        {"config": values["config"] + "\0" + values["output"]},
        {},
    ):
        assert not is_local(other)
        if other.get("config"):
            assert told_by(other).startswith(("dataset.root=", "config: "))


def test_local_runs_are_known_to_processes_started_by_the_command(monkeypatch):
    values = run_config(composed("seed=71"))
    monkeypatch.delenv("EDGEWIRE_LOCAL_CONFIGS")  # as in a process that another user has started
    assert not is_local(values)
    mark_as_local(values)
    mark_as_local(values)
    assert is_local(values)
    for seed in range(100):
        mark_as_local({"config": str(seed)})
    assert is_local({"config": "99"})
    assert not is_local(values)  # only the newest runs are remembered
    assert len(os.environ["EDGEWIRE_LOCAL_CONFIGS"]) < 2000


def test_local_overrides_may_read_the_environment(secret):
    made = compose_config([f"device=${{oc.env:{SECRET}}}"])
    assert to_config(made).device == HIDDEN


@pytest.mark.system
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(["$", "{", "}", "\\", "${", "lr", ":", "oc.env:", SECRET, "'", "x"]))
)
def test_a_text_that_a_reference_resolved_to_stays_as_it_is(secret, monkeypatch, pieces):
    text = "".join(pieces)
    monkeypatch.setenv("EDGEWIRE_TEST_TEXT", text)
    word = "${oc.env:EDGEWIRE_TEST_TEXT}"
    own = composed(f"device={word}", f"dataset.classes=['{word}']", f"trainable=['{word}']")
    for made in (to_config(own), load_config(run_config(own), 2)):
        assert (made.device, made.dataset.classes, made.trainable) == (text, [text], [text])


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ("a", {"a", "a.b", "a.b.C"}),
        ("a.b", {"a.b", "a.b.C"}),
        ("a, x", {"a", "a.b", "a.b.C", "x.y"}),
        ("a.b.C", {"a.b.C"}),
        ("a.bc", set()),
        ("", set()),
    ],
)
def test_packages_that_a_machine_allows(given, allowed):
    machine = NodeGrants.of({"allow": given})
    names = {"a", "a.b", "a.b.C", "ab", "x.y", "a._b", "a.__b__.c", "a.b.C()", ""}
    assert {name for name in names if machine.allows(name)} == allowed


def test_packages_of_the_node_and_its_environment_are_both_allowed(monkeypatch):
    monkeypatch.setenv("EDGEWIRE_ALLOW", "b")
    monkeypatch.setenv("EDGEWIRE_DATA", "/there")
    machine = NodeGrants.of({"allow": "a", "data": "/here"})
    assert (machine.allow, machine.data) == (("a", "b"), "/here")
    assert NodeGrants.of({}) == NodeGrants(("b",), "/there")


# Overrides.


@pytest.mark.few(18)
@pytest.mark.parametrize("word", WORDS)
def test_overrides_that_reach_for_the_machine_give_one_line(bait, asked, word):
    for text in (word, word.replace("oc.env:SECRET", "spy:x")):
        with pytest.raises(ConfigError) as caught:
            load_config({"config": "", "overrides": shlex.quote(put(text, bait))}, 2)
        told = str(caught.value)
        assert HIDDEN not in told
        assert str(HERE) not in told
        assert "\n" not in told
        assert len(told) < 600
    assert not asked


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("lr=0.1,0.2", "it is one run, and no sweep"),
        ("model=glob(*)", "it is one run, and no sweep"),
        ("hydra/launcher=joblib", "Hydra's own settings are this machine's"),
        ("a-b=1", "keys and groups are names"),
        ("optimizer=../../x", "a group's choice is a name"),
        ("lr='0.1", "overrides"),
    ],
)
def test_an_override_is_refused_with_a_reason(word, why):
    with pytest.raises(ConfigError, match=why):
        load_config({"overrides": word}, 2)


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


def test_a_file_of_the_machine_cannot_be_chosen(tmp_path):
    """A submitted choice cannot be a path; Hydra alone would read that file."""
    (tmp_path / "mine.yaml").write_text("_target_: torch.optim.SGD\nmomentum: 0.125\n")
    path = "../" * 20 + str(tmp_path / "mine").lstrip("/")
    assert compose_config([f"optimizer={path}"]).optimizer.momentum == 0.125
    with pytest.raises(ConfigError, match="a group's choice is a name"):
        load_config({"overrides": f"optimizer={path}"}, 2)
