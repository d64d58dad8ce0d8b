"""Every file of a configuration group can be composed and built; errors name wrong keys."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from edgewire.conf.build import data_of, optimizer_of, partition_of
from edgewire.conf.check import check_target, codec_of, downlink_of
from edgewire.conf.load import compose_config, load_config, run_config, to_config
from edgewire.conf.schema import ConfigError
from edgewire.strategy import factory
from edgewire.strategy.lr_schedule import Schedule
from edgewire.task.models import build_model
from edgewire.task.models.parts import MODELS
from tests.runs import choices, composed
from tests.runs import configured as config

CONF = Path(__file__).parents[2] / "conf"
GROUPS = sorted(p.name for p in CONF.iterdir() if p.is_dir() and p.name[0] not in "_")
CHOICES_OF = {
    group: sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    for group in GROUPS
    if group not in ("hydra", "experiment")
}
CHOICES = [(group, choice) for group, choices in CHOICES_OF.items() for choice in choices]
# These groups combine freely; choices with the same index are composed together.
FREE = ("compression", "dataset", "model", "network", "optimizer", "partition", "schedule")


def chosen(group, choice):
    """Return the overrides of a choice, and of the choices that are composed together with it."""
    number = CHOICES_OF[group].index(choice)
    others = [g for g in FREE if g != group] if group in FREE else []
    words = [f"{g}={CHOICES_OF[g][number % len(CHOICES_OF[g])]}" for g in others]
    return sorted([*words, f"{group}={choice}"])


@pytest.mark.few(71)
@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_composes_and_has_a_description(group, choice):
    words = chosen(group, choice)
    words += ["dataset.root=/nowhere"] if "dataset=imagefolder" in words else []
    if choice in ("asynchronous", "synthetic_gradients", "split_backprop"):
        words += ["downlink=full"]
    made = config(*words)
    lines = (CONF / group / f"{choice}.yaml").read_text().splitlines()
    assert any(line.startswith("# ") and "@package" not in line for line in lines[:2])
    if group == "strategy":
        assert factory.made(made).summary() is None
    elif group == "partition":
        data = data_of(config())
        groups = torch.arange(len(data.train)) % 50
        data = replace(data, train=replace(data.train, groups=groups))
        parts = [partition_of(made, data).indices(node) for node in range(made.nodes)]
        assert all(len(part) > 0 for part in parts)
        used = {index for part in parts for index in part.tolist()}
        left_out = 2 * made.nodes  # fewer samples than this do not fill a shard
        assert choice == "sampled" or len(used) > len(data.train.targets) - left_out
    elif group == "compression":
        assert codec_of(made)
    elif group == "downlink":
        assert (downlink_of(made) is None) == (choice == "full")
    elif group == "optimizer":
        model = build_model("mlp", channels=1, size=8, classes=10)
        assert optimizer_of(made, list(model.parameters()))
    elif group == "schedule":
        first = made.lr / made.schedule.get("div_factor", 1)
        assert Schedule(made.schedule, made.lr).lr == pytest.approx(first)
    elif group == "engine":
        assert callable(check_target("engine", made.engine).made)
    elif group == "algorithm":
        assert made.algorithm == choice


def test_every_model_has_a_choice():
    files = {choice: CONF / "model" / f"{choice}.yaml" for g, choice in CHOICES if g == "model"}
    named = {choice for choice, file in files.items() if "\nname: " in file.read_text()}
    assert named == {*MODELS}


def test_int8_is_another_name_for_f2i():
    words = ["compression={0}", "downlink={0}", "compression@gradients={0}"]
    assert config(*(w.format("int8") for w in words)) == config(*(w.format("f2i") for w in words))


GROUPS_OF_VALUES = [*FREE, "strategy", "engine", "screen", "downlink", "gradients"]
NO_KEYS = ["+nonsense=3", "++nonsense=3", "+model.nonsense=3", "+defaults=[{hydra/launcher:x}]"]
NO_KEYS += [f"+{group}.nonsense={value}" for group in GROUPS_OF_VALUES for value in (1, "{a:1}")]


@pytest.mark.few(19)
@pytest.mark.parametrize("word", NO_KEYS)
@pytest.mark.parametrize("way", ["own", "submitted"])
def test_an_undeclared_key_is_refused_wherever_it_is_added(word, way):
    key = word.lstrip("+").partition("=")[0]

    def begin():  # as the command and the server do
        made = config(word) if way == "own" else load_config({"overrides": f"'{word}'"}, 10)
        check_target("engine", made.engine)
        check_target("partition", made.partition)

    with pytest.raises(ConfigError) as caught:
        begin()
    assert key in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        ["strategy/optimizer=momentum", "algorithm=esgd", "strategy.optimizer.momentum=0.5"],
        ["network=mixed", "network.classes.fast.share=0.9", "compression@gradients=topk"],
        ["+network.classes={own:{share:1,speed:2}}", "dataset.classes=[a,b]", "timeout=1e3"],
        ["schedule=cosine", "+optimizer.amsgrad=true", "rounds=7", "dataset.size=null"],
    ],
)
def test_the_tests_fast_composition_equals_hydras(words):
    assert composed(*words) == compose_config(words)
    assert run_config(composed(*words)) == run_config(compose_config(words))


def test_the_default_is_compressed_both_ways():
    made = config()
    assert made.algorithm == "fedavg_f2i_both"
    same = config("algorithm=fedavg_f2i", "downlink=f2i", "rounds=20")
    assert replace(made, algorithm=same.algorithm) == same


def test_the_configuration_survives_flowers_run_config():
    plain = composed("algorithm=fedavg_f2i", "network=mixed", "partition=dirichlet")
    values = run_config(plain, output="/x")
    assert all(isinstance(v, str) for v in values.values())
    assert load_config(values, nodes=99) == to_config(plain)
    assert load_config(values, 99) is load_config(
        dict(values), 99
    )  # cached, because it is called for each message


def test_plain_flwr_run_composes_for_the_given_number_of_nodes():
    made = load_config({"config": "", "overrides": "algorithm=fedavg_f2i rounds=3"}, nodes=2)
    assert (made.nodes, made.rounds, made.compression.quantizer) == (2, 3, "int8")
    with pytest.raises(ConfigError, match="epsilon= protects nothing"):
        load_config({"config": "", "overrides": "privacy.epsilon=8"}, nodes=2)


def test_asynchronous_runs_derive_settings_from_updates_in_place_of_rounds():
    plain = composed("algorithm=adacomp", "strategy.pushes=700", "schedule=cosine")
    for made in (to_config(plain), load_config(run_config(plain), nodes=200)):
        assert made.rounds == made.schedule["T_max"] == 700
    assert plain.rounds == 10
    alone = config("strategy=asynchronous", "rounds=3")
    assert alone.rounds == alone.strategy["pushes"]


def test_settings_are_chosen_on_a_part_of_the_training_set():
    whole, apart = (data_of(config(*words)) for words in ((), ("dataset.validate=0.2",)))

    def images(split):
        return {image.numpy().tobytes() for image in split.inputs}

    assert images(apart.train) | images(apart.test) == images(whole.train)
    assert len(apart.train.targets) + len(apart.test.targets) == len(whole.train.targets)
    assert len(apart.test.targets) == pytest.approx(0.2 * len(whole.train.targets), abs=10)
    assert not images(apart.test) & images(whole.test)


def test_folds_take_each_training_sample_once():
    words = [("dataset.validate=0.25", f"dataset.fold={fold}") for fold in range(5)]
    held = [data_of(config(*each)).test.inputs for each in words]
    samples = [image.numpy().tobytes() for part in held[:4] for image in part]
    whole = len(data_of(config()).train.targets)
    assert len(samples) == pytest.approx(whole, abs=20)  # of ten classes, each in four equal parts
    assert len({*samples}) == pytest.approx(whole, abs=20)
    assert len({*samples} & {image.numpy().tobytes() for image in held[4]}) > len(held[4]) - 20


@pytest.mark.few(1)
@pytest.mark.parametrize("group", ["compression", "downlink"])
def test_another_choice_replaces_all_of_the_preset_s(group):
    for name in choices(group)[::5]:
        words = [f"{group}={name}"]
        chosen = getattr(config("algorithm=edgewire", *words), group)
        assert chosen == getattr(config("algorithm=fedavg_topk", *words), group), name
