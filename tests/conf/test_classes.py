"""A submitted configuration can name only classes that are meant for their group."""

import functools
import importlib
import inspect
import pkgutil
from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from edgewire.conf.build import server_optimizer_of
from edgewire.conf.check import Codecs, build, check_target, checked_target, parameters_of
from edgewire.conf.classes import GROUPS, HERE, KINDS, is_ours, target_of
from edgewire.conf.load import compose_config, load_config, to_config
from edgewire.conf.schema import OWN, ConfigError
from edgewire.conf.trust import NodeGrants, confine
from edgewire.strategy.synchronous import Participation, SparseAveraging
from edgewire.task.local import LocalAlgorithm
from tests.conf.hostile import (
    ASYNCHRONOUS,
    AVERAGING,
    NAMES,
    OWN_SGD,
    RUN,
    SGD,
    WRAPPER,
    plain,
    put,
    refused,
    submitted,
)
from tests.conf.hostile import GROUPS as BAD_GROUPS
from tests.runs import configured

HALF = Participation(quorum=0.5)
FIXTURES = [HealthCheck.function_scoped_fixture]


plain_config = functools.cache(configured)


def refused_at_the_border(group, node):
    """Assert that a submitted group is refused before any module of it is imported."""
    config, own = plain_config(), group in OWN
    made = replace(config, **{group: replace(getattr(config, group), own=node) if own else node})
    with pytest.raises(ConfigError, match="allow=") as caught:
        confine(made, NodeGrants())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [*NAMES, 5, None, True, ["os.system"], {"_target_": "os.system"}])
def test_a_name_outside_the_lists_is_refused_in_every_group(bait, name):
    for group in (*GROUPS, *OWN):
        node = {"_target_": put(name, bait), "command": f"echo >> {bait}", "file": str(bait)}
        refused_at_the_border(group, node)
        refused_at_the_border(group, {"_target_": "torch.optim.SGD", "x": [{"y": node}]})


def test_a_submitted_run_may_use_the_listed_sources_below_the_data_folder(tmp_path):
    (tmp_path / "in").mkdir()
    for choice in ("csv", "npz", "text"):
        load = functools.partial(load_config, nodes=2, node_config={"data": str(tmp_path)})
        words = plain(f"dataset={choice}")
        assert load(submitted(words)).dataset.root == str(tmp_path)
        words["dataset"]["root"] = "in"
        assert load(submitted(words)).dataset.root == str(tmp_path / "in")
        words["dataset"]["root"] = "../other"
        with pytest.raises(ConfigError, match=r"dataset\.root="):
            load(submitted(words))


@pytest.mark.few(13)
@pytest.mark.parametrize(("group", "node"), BAD_GROUPS)
def test_values_within_a_group_are_checked_too(bait, group, node):
    # A node checks a partition only when it makes one, because it may have its own images.
    if group == "partition":
        with pytest.raises(ConfigError):
            build(group, load_config(submitted({**plain(), group: put(node, bait)}), 2).partition)
    else:
        refused({**plain(), group: put(node, bait)})
    with pytest.raises(ConfigError):  # in a local run too
        check_target(group, put(node, bait))


PIECES = """
    os system builtins open eval task datasets folder torch optim SGD lr_scheduler StepLR flwr
    serverapp strategy FedAvg staleness optimizers subprocess Popen partition Sampled conf load
    __main__ __init__ __globals__ _ simulation local run_local flwr_datasets partitioner
"""


@settings(suppress_health_check=FIXTURES)
@given(st.lists(st.sampled_from(PIECES.split()), min_size=1, max_size=5), st.sampled_from(GROUPS))
def test_a_name_is_built_only_if_it_is_listed_for_its_group(bait, pieces, group):
    name = ".".join(pieces)
    if not is_ours(group, name):
        refused_at_the_border(group, {"_target_": name, "file": str(bait)})
    else:
        try:
            target = target_of(group, name)
        except ConfigError:
            return
        assert target.__module__.partition(".")[0] == pieces[0]


def attributes(package):
    """Yield the dotted names of all attributes of a package's modules, imported names included."""
    names = [each.name for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    for module in [package.__name__, *names]:
        yield from (f"{module}.{name}" for name in dir(importlib.import_module(module)))


def test_only_classes_of_a_groups_base_can_be_built():
    """Even if a node allows `task`, it builds no function of `task` and no name imported there."""
    for name in attributes(importlib.import_module("edgewire.task")):
        for group in GROUPS:
            try:
                found = target_of(group, name)
            except ConfigError:
                continue
            places = {
                "partition": "edgewire.task.partition",
                "objective": "edgewire.task.objectives.",
                "adapter": "edgewire.task.finetuning",
                "local": "edgewire.task.local",
            }
            assert found.__module__.startswith(places[group]), name


@pytest.mark.parametrize("group", sorted({*GROUPS} - {"objective", "adapter", "local"}))
def test_only_classes_of_the_right_base_are_built_from_a_library(group):
    module, base = KINDS[group]
    library = importlib.import_module(module)
    built = 0
    for name in dir(library):
        try:
            found = target_of(group, f"{module}.{name}")
        except ConfigError:
            continue
        assert issubclass(found, getattr(library, base))
        built += 1
    assert built > 5


@pytest.mark.parametrize(
    ("words", "group", "name"),
    [
        (["strategy=krum"], "strategy", "Krum"),
        (["optimizer=adam"], "optimizer", "Adam"),
        (["schedule=cosine"], "schedule", "CosineAnnealingLR"),
        (["partition=sampled"], "partition", "Sampled"),
        (["optimizer=adam", "optimizer._target_=torch.optim.RAdam"], "optimizer", "RAdam"),
    ],
)
def test_the_projects_classes_and_those_of_libraries_need_no_permission(words, group, name):
    made = load_config(submitted(plain(*words)), 10)
    assert getattr(made, group)["_target_"].endswith(name)
    assert build(group, getattr(made, group)) is not None


def test_objects_within_a_strategy_are_made_as_it_declares_them():
    config = plain(
        "algorithm=dgc", "strategy/optimizer=momentum", "strategy.optimizer.momentum=0.3"
    )
    made = load_config(submitted(config), 2)
    assert server_optimizer_of(made).momentum == 0.3
    assert build("strategy", made.strategy)().optimizer.momentum == 0.3
    late = {
        **ASYNCHRONOUS,
        "staleness": {"_target_": "edgewire.strategy.staleness.Polynomial", "a": 2.0},
    }
    assert build("strategy", late)().staleness.a == 2.0
    inner = {"_target_": "flwr.serverapp.strategy.FedAvg", "fraction_train": 0.5}
    options = {"noise_multiplier": 1.0, "clipping_norm": 1.0, "num_sampled_clients": 2}
    outer = build("strategy", {"_target_": WRAPPER, "strategy": inner, **options})
    assert outer.strategy.fraction_train == 0.5


def test_a_built_object_shares_nothing_with_the_configuration():
    name = "edgewire.pipeline.server.strategy.PipelineStrategy"
    node = {"_target_": name, "_partial_": True, "cuts": [1, {"0": [5]}]}
    made = build("strategy", node)()
    made.cutting.cuts.append(4)
    made.cutting.cuts[1]["0"].append(6)
    assert node["cuts"] == [1, {"0": [5]}]


def ours():
    """Yield the project's own strategy classes with groups of options that YAML files name."""
    for file in sorted((HERE / "strategy").glob("*.yaml")):
        name = str(OmegaConf.load(file).get("_target_"))
        if name.startswith("edgewire.") and parameters_of(kind := target_of("strategy", name))[2]:
            yield pytest.param(kind, id=file.stem)


OTHER = {  # valid values for options where default + 1 is not valid
    "absent": "left_out", "cuts": [1], "fraction_train": 0.5, "least_factor": 0.5,
    "mean": "median", "module": "gradient_of_loss", "quorum": 0.5, "schedule": "sequential",
    "trained_by": "nothing", "trim": 0.1, "weighted_by_key": "num-examples",
}  # fmt: skip
NEEDED = {"trained_by": {"module": "gradient_of_loss"}}  # the other options that an option needs


def another(default):
    return not default if isinstance(default, bool) else (default or 0) + 1


@pytest.mark.parametrize("kind", list(ours()))
def test_each_option_of_a_group_reaches_the_group_of_that_name(kind):
    """A strategy's option sets the field of that name in its group; other fields have defaults."""
    plain, _, groups = parameters_of(kind)
    assert len(plain) == len(inspect.signature(kind).parameters) - len(groups) + sum(
        len(fields(group.annotation)) for group in groups
    )
    for group in groups:
        assert getattr(kind(), group.name) == group.default
        for field in fields(group.annotation):
            value = OTHER[field.name] if field.name in OTHER else another(field.default)
            node = {"_target_": f"{kind.__module__}.{kind.__name__}", field.name: value}
            needed = NEEDED.get(field.name, {})
            made = build("strategy", {**node, **needed})
            beside = {key: needed[key] for key in needed if hasattr(group.default, key)}
            expected = replace(group.default, **beside, **{field.name: value})
            assert getattr(made, group.name) == expected


def test_an_option_that_a_preset_sets_for_another_choice_says_how_to_remove_it():
    words = ["algorithm=edgewire_fixed", "optimizer=adam"]
    with pytest.raises(ConfigError, match=r"~optimizer\.momentum removes it"):
        configured(*words)
    left = to_config(compose_config([*words, "~optimizer.momentum"]))
    assert "momentum" not in left.optimizer


def test_a_group_as_a_whole_and_what_the_run_sets_are_no_options_of_a_configuration():
    with pytest.raises(ConfigError, match="participation is not an option of"):
        check_target("strategy", {**AVERAGING, "participation": 1})
    with pytest.raises(ConfigError, match=r"optimizer: the run itself sets lr: give lr= in its pl"):
        build("optimizer", {**SGD, "lr": 3})([], lr=0.1)
    with pytest.raises(ConfigError, match=r"strategy: the run itself sets codecs: drop it"):
        build("strategy", {**AVERAGING, "codecs": None})(codecs=Codecs())


class Half(SparseAveraging):
    """Another default for a group, and `**options`."""

    def __init__(self, participation=HALF, **options) -> None:
        super().__init__(participation=participation, **options)


Half.__init__.__annotations__ = {"participation": Participation}


@pytest.mark.parametrize("name", ["participation", "aggregation"])
def test_a_groups_own_name_is_no_option_of_a_class_that_takes_any_option(name):
    options = {"participation": "fraction_train", "aggregation": "weighted_by_key"}
    words = rf"strategy\.{name} is not an option .*; did you mean strategy\.{options[name]}"
    with pytest.raises(ConfigError, match=words):
        checked_half(**{name: 3})
    with pytest.raises(ConfigError, match=rf"strategy\.{name} is not an option"):
        checked_half(**{name: {"quorum": 0.2}})


def checked_half(**options):
    return checked_target("strategy", {"_target_": "Half", **options}, Half)


def test_a_subclass_changes_a_groups_default():
    assert checked_half().made().participation.quorum == 0.5
    made = checked_half(min_train_nodes=2, mean="median").made()
    assert made.participation == replace(HALF, min_train_nodes=2)
    assert (made.aggregation.trim, made.aggregation.mean) == (0.2, "median")


def test_a_text_is_not_interpolated_twice(bait):
    """If a text looks like an interpolation once its escapes are removed, it stays a text."""
    told = "${oc.env:" + "EDGEWIRE_TEST_SECRET}"
    with pytest.raises(ConfigError) as caught:
        build("strategy", {**AVERAGING, "update": told})()
    assert told in str(caught.value)


def test_nodes_ignore_the_engine(bait):
    made = load_config(submitted({**plain(), "engine": put(RUN, bait)}), 2)
    assert "engine" not in GROUPS
    assert made.engine["_target_"] == RUN["_target_"]
    assert callable(check_target("engine", configured("engine=local").engine).made)


@pytest.mark.parametrize("inner", [OWN_SGD, [OWN_SGD], {"x": OWN_SGD}])
def test_an_option_that_declares_no_class_takes_no_object(inner):
    node = {"_target_": "torch.optim.SGD", "_partial_": True, "momentum": inner}
    with pytest.raises(ConfigError, match=r"optimizer\.momentum"):
        check_target("optimizer", node)


def single_values():
    """Yield (group, settings, option) for each option whose value in its file is a single value."""
    for group in (*GROUPS, "engine"):
        for file in sorted((HERE / group).glob("*.yaml")):
            node = OmegaConf.to_container(OmegaConf.load(file))
            node.pop("defaults", None)
            if "_target_" not in node:
                continue
            for key, value in node.items():
                if not key.startswith("_") and isinstance(value, int | float | bool):
                    yield pytest.param(group, node, key, id=f"{group}={file.stem} {key}")


@pytest.mark.parametrize(("group", "node", "key"), list(single_values()))
def test_a_list_or_a_mapping_is_refused_for_a_single_value(group, node, key):
    """A list or mapping in place of a single value is refused in one line, before it is used."""
    plain = {k: 1 if v in ("???",) or str(v).startswith("${") else v for k, v in node.items()}
    target = check_target(group, {**plain, key: node[key]}).make
    kind = parameters_of(target)[0][key].annotation
    if "int" not in str(kind) and "float" not in str(kind) and "bool" not in str(kind):
        pytest.skip("its annotation allows it")
    for value in ([1], [], {"a": 1}, {}):
        if "Sequence" in str(kind) or "list" in str(kind) or "tuple" in str(kind):
            check_target(group, {**plain, key: value})
            continue
        with pytest.raises(ConfigError, match=rf"{group}\.{key} must be"):
            check_target(group, {**plain, key: value})


class OwnLocal(LocalAlgorithm):
    """A local algorithm that does not pass options on to its base class."""

    def __init__(self, twice: int = 1) -> None:
        self.twice = twice


@pytest.mark.parametrize("name", ["plain", "kept_optimizer", "fedprox", "scaffold"])
def test_ones_own_class_need_not_take_the_options_of_the_yaml_file_that_it_replaces(name):
    own = {"_target_": f"{__name__}.OwnLocal", "twice": 2}
    config = configured(f"local={name}")
    made = build("local", {**config.local, **own})
    assert (made.twice, made.accumulate, made.quantizer) == (2, 1, "float32")
    with pytest.raises(ConfigError, match=r"local\.accumulate is not an option"):
        build("local", {**config.local, **own, "accumulate": 3})
