"""The adviser's answers from made runs, and its answers to odd questions."""

import json
import math
import os
import signal
import subprocess
import sys

import pytest
import yaml

from edgewire.conf.network import Network
from edgewire.report.advise.__main__ import main, parameters
from edgewire.report.advise.candidates import archived_runs, choose, own_runs
from edgewire.report.advise.energy import RADIOS, joules, own_radio, radio_named
from edgewire.report.advise.presets import CONF, effective, preset
from edgewire.report.advise.ranking import asked_goal, default_goal, rank, short_name
from edgewire.report.link_time import Progress, parse_link
from papers.make.run_archive import ROOT
from tests.report.advise.made_runs import MB, NODES, add_run, curve
from tests.report.sweeps import add_job
from tests.runs import composed, configured


@pytest.fixture
def sweep(tmp_path):
    """Return runs of three settings: uncompressed, compressed, and one that never learns."""
    folder = tmp_path / "runs"
    for seed in (0, 1):
        words = f"task=keywords seed={seed}"
        add_run(folder / f"a{seed}", f"algorithm=fedavg {words}", [0.1, 0.6, 0.9], MB, MB)
        add_run(
            folder / f"b{seed}", f"algorithm=edgewire {words}",
            [0.1, 0.3, 0.5, 0.7, 0.8, 0.91], MB // 100, MB // 20,
        )  # fmt: skip
        add_run(folder / f"c{seed}", f"algorithm=stc {words}", [0.1, 0.1, 0.1], 10, 10)
    return folder


@pytest.fixture
def empty(tmp_path):
    """Return a repository without stored runs."""
    root = tmp_path / "root"
    root.mkdir()
    return root


def asked(capsys, root, *words):
    """Return the JSON of the adviser's answer."""
    assert main([*words, "--json"], root) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, root, *words):
    """Return the one line with which the adviser refuses a question."""
    assert main(list(words), root) == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err.startswith("error: ")
    assert said.err.count("\n") == 1
    return said.err


def test_the_link_decides(sweep, empty, capsys):
    question = ("--task", "keywords", "--accuracy", "0.9", "--runs", str(sweep))
    slow = asked(capsys, empty, "--link", "1/1", *question)
    fast = asked(capsys, empty, "--link", "1000/1000", *question)
    assert slow["settings"][0]["name"] == "edgewire"
    assert fast["settings"][0]["name"] == "fedavg"
    dense = next(each for each in slow["settings"] if each["name"] == "fedavg")
    # two rounds: 1 MB in each direction at 1 Mbit/s, and four steps of 0.01 s
    assert dense["seconds"] == pytest.approx(2 * (16 + 0.04), rel=1e-3)
    assert dense["up_bytes_per_device"] == 2 * MB
    assert dense["bytes"] == 2 * 2 * MB * NODES
    assert [each["name"] for each in slow["settings"]][-1] == "stc"
    assert slow["settings"][-1]["seconds"] is None
    assert slow["settings"][-1]["best"] == pytest.approx(0.1)


def test_latency_and_slow_devices_count(sweep, empty, capsys):
    words = ("--link", "1000/1000", "--task", "keywords", "--reach", "0.9", "--runs", str(sweep))
    late = asked(capsys, empty, *words, "--latency", "1000")["settings"][0]
    assert late["seconds"] == pytest.approx(2 * (2 + 0.016 + 0.04), rel=1e-2)
    slow = asked(capsys, empty, *words, "--seconds-per-step", "2")["settings"][0]
    assert slow["seconds"] == pytest.approx(2 * (0.016 + 8), rel=1e-2)
    shared = asked(capsys, empty, *words, "--server-mbps", "1", "--devices", "10")
    one = next(each for each in shared["settings"] if each["name"] == "fedavg")
    assert one["seconds"] == pytest.approx(2 * 10 * 8, rel=0.15)
    assert any("10" in note and "devices" in note for note in shared["unknown"])


def test_a_percentage_is_a_share(sweep, empty, capsys):
    words = ("--link", "1/1", "--task", "keywords", "--runs", str(sweep))
    goals = {asked(capsys, empty, *words, "--accuracy", v)["goal"] for v in ("0.9", "90")}
    assert goals == {0.9}


def test_the_default_goal_is_a_share_of_the_uncompressed_value(sweep):
    goal = default_goal(own_runs([sweep])[0])
    assert goal.bound == pytest.approx(0.98 * 0.9)
    assert default_goal(own_runs([sweep])[0], 0.95).bound == pytest.approx(0.95 * 0.9)


def test_a_goal_that_no_run_reaches_shows_the_best_value(sweep, empty, capsys):
    words = ("--link", "1/1", "--task", "keywords", "--runs", str(sweep), "--accuracy", "0.99")
    answer = asked(capsys, empty, *words)
    assert answer["settings"][0]["name"] == "edgewire"
    assert answer["settings"][0]["best"] == pytest.approx(0.91)
    assert any("no run reaches" in note for note in answer["unknown"])
    assert main([*words], empty) == 0
    assert "91.00 %" in capsys.readouterr().out


def test_settings_that_always_reach_the_goal_come_first(tmp_path, empty, capsys):
    for seed, last in ((0, 0.95), (1, 0.5)):
        add_run(tmp_path / f"a{seed}", f"algorithm=stc seed={seed} task=keywords",
                [0.1, last], 1, 1)  # fmt: skip
        add_run(tmp_path / f"b{seed}", f"algorithm=fedavg seed={seed} task=keywords",
                [0.1, 0.9], MB, MB)  # fmt: skip
    answer = asked(
        capsys, empty, "--link", "1/1", "--task", "keywords", "--runs", str(tmp_path),
        "--accuracy", "0.9",
    )  # fmt: skip
    found = [(each["name"], each["reached"], each["runs"]) for each in answer["settings"]]
    assert found == [("fedavg", 2, 2), ("stc", 1, 2)]


MAE = {"metrics": {"mae": {"name": "mae", "higher": False, "share": False}}}


@pytest.fixture
def regression(tmp_path):
    """Return two runs of a task in which less is better, one with negative values."""
    folder = tmp_path / "mae"
    add_run(folder / "a", "algorithm=fedavg task=sensor_table", [9.0, 0.5, 0.2], MB, MB, "mae",
            **MAE, mae=0.2, best_mae=0.2, accuracy=None, best_accuracy=None)  # fmt: skip
    add_run(folder / "b", "algorithm=edgewire task=sensor_table", [9.0, 0.8, 0.5, 0.201], 9, 9,
            "mae", **MAE, mae=0.201, best_mae=0.201, accuracy=None, best_accuracy=None)  # fmt: skip
    return folder


def test_less_is_better_in_a_regression(regression, empty, capsys):
    words = ("--link", "1/1", "--task", "sensor_table", "--runs", str(regression))
    answer = asked(capsys, empty, *words)
    assert answer["metric"] == "mae"
    assert answer["goal"] == pytest.approx(0.2 * 1.02)
    assert answer["settings"][0]["name"] == "edgewire"
    assert answer["settings"][0]["rounds"] == 3
    quick = asked(capsys, empty, *words, "--reach", "0.2")
    assert [each["reached"] for each in quick["settings"]] == [1, 0]
    assert "--reach" in refused(capsys, empty, *words, "--accuracy", "0.9")
    assert "--reach" in refused(capsys, empty, *words, "--loss", "0.9")


def test_negative_values_have_a_goal_below_the_best(tmp_path):
    add_run(tmp_path / "a", "algorithm=fedavg task=sensor_table", [1.0, -2.0], MB, MB, "loss",
            metrics={}, loss=-2.0)  # fmt: skip
    runs, _ = own_runs([tmp_path])
    assert runs[0].run.metric.name == "loss"
    goal = default_goal(runs)
    assert goal.bound == pytest.approx(-1.96)
    assert rank(runs, goal, parse_link("1/1"))[0].always
    assert asked_goal(runs, "loss", -1.5).bound == -1.5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--accuracy", "0"], "share"),
        (["--accuracy", "101"], "share"),
        (["--accuracy", "-3"], "share"),
        (["--accuracy", "nan"], "number"),
        (["--reach", "inf"], "number"),
        (["--loss", "0.3"], "--reach"),
        (["--link", "0/1"], "above 0"),
        (["--link", "ten"], "DOWN/UP"),
        (["--latency", "-1"], "--latency"),
        (["--latency", "nan"], "--latency"),
        (["--latency", "1e308"], "--latency"),
        (["--server-mbps", "0"], "--server-mbps"),
        (["--server-mbps", "1e-300"], "--server-mbps"),
        (["--link", "1e-300/1"], "Mbit/s"),
        (["--seconds-per-step", "-1"], "--seconds-per-step"),
        (["--seconds-per-step", "1e300"], "--seconds-per-step"),
        (["--seconds-per-step", "slow"], "must be a number, not slow"),
        (["--parameters", "-5"], "above 0"),
        (["--parameters", "0"], "above 0"),
        (["--parameters", "1e300"], "--parameters"),
        (["--parameters", "nan"], "--parameters"),
        (["--devices", "0"], "at least 1"),
        (["--devices", "-5"], "at least 1"),
        (["--devices", "1e3"], "at least 1"),
        (["--devices", "9" * 12], "at most"),
        (["--rounds", "0"], "at least 1"),
        (["--accuracy", "1.5"], "would be 1.5 %"),
        (["--reach", "1.01"], "would be 1.01 %"),
        (["--accuracy", "9.5"], "the untrained model already reaches the goal, accuracy 9.50 %"),
        (["--accuracy", "0.9", "--loss", "1"], "not allowed with"),
        (["--nonsense"], "--nonsense"),
        (["--energy", "5g"], "lte"),
        (["--energy"], "--watts"),
        (["--watts", "1"], "--watts"),
        (["--watts=-1/1"], "--watts"),
        (["--watts", "nan/1"], "--watts"),
        (["--task", "nothing_like_this"], "--try"),
        (["--model", "nothing_like_this"], "--try"),
        (["--", "nodes=3"], "--try"),
        (["--runs", "/nowhere"], "no such folder"),
    ],
)
def test_odd_questions_get_one_line(words, said, sweep, empty, capsys):
    usual = ["--link", "1/1", "--task", "keywords", "--runs", str(sweep)]
    assert said in refused(capsys, empty, *usual, *words)


def test_a_question_without_link_or_task_gets_one_line(sweep, empty, capsys):
    assert "--link" in refused(capsys, empty, "--task", "keywords")
    assert "--task" in refused(capsys, empty, "--link", "1/1", "--runs", str(sweep))
    assert "--try" in refused(capsys, empty, "--link", "1/1", "--task", "keywords")
    folder = empty / "none"
    folder.mkdir()
    words = ("--link", "1/1", "--task", "keywords", "--runs", str(folder))
    assert "no finished run" in refused(capsys, empty, *words)


def test_runs_that_say_nothing_are_left_out(tmp_path):
    add_run(tmp_path / "ok", "algorithm=fedavg task=keywords", [0.1, 0.9], MB, MB)
    add_run(tmp_path / "flat", "algorithm=stc task=keywords", [0.1], 1, 1)
    add_run(tmp_path / "none", "algorithm=stc task=keywords lr=1", [0.1, 0.1], 1, 1,
            client_updates=0)  # fmt: skip
    add_run(tmp_path / "cut", "algorithm=synthetic_gradients", [0.1, 0.9], 1, 1)
    add_run(tmp_path / "late", "algorithm=edgewire strategy.deadline=2", [0.1, 0.9], 1, 1)
    add_run(tmp_path / "odd", "algorithm=fedavg network.up_mbps=-1", [0.1, 0.9], 1, 1)
    add_run(tmp_path / "lost", "algorithm=fedavg network=nowhere", [0.1, 0.9], 1, 1)
    add_job(tmp_path / "unfinished", "algorithm=fedavg", finished=False)
    rows = [{"round": 0}, {"round": 1, "accuracy": None}]
    add_job(tmp_path / "unmeasured", "algorithm=fedavg", rows, rounds=1, nodes=NODES)
    runs, unusable = own_runs([tmp_path])
    assert unusable == 7
    assert [run.overrides["algorithm"] for run in runs] == ["fedavg"]
    assert runs[0].replies == NODES


def test_missing_values_in_a_curve_are_skipped(tmp_path):
    add_run(tmp_path / "a", "algorithm=fedavg task=keywords", [0.1, None, 0.9], MB, MB)
    runs, _ = own_runs([tmp_path])
    found = rank(runs, asked_goal(runs, "accuracy", 0.5), parse_link("1/1"))
    assert found[0].at.rounds == 2


def test_a_name_is_only_text(tmp_path, empty, capsys):
    add_run(tmp_path / "a", "algorithm=<script>alert(1)</script> task=keywords",
            [0.1, 0.9], MB, MB)  # fmt: skip
    words = ["--link", "1/1", "--task", "keywords", "--runs", str(tmp_path)]
    assert main(words, empty) == 0
    assert "'algorithm=<script>alert(1)</script>'" in capsys.readouterr().out  # shell quoting


def test_unknown_steps_are_reported(tmp_path, empty, capsys):
    rows = [row | {"virtual_seconds": None} for row in curve([0.1, 0.9], NODES, NODES)]
    for name, words in (("a", "local_steps=7"), ("b", "")):
        add_job(
            tmp_path / name, f"algorithm=fedavg task=keywords {words}", rows, rounds=1,
            client_updates=NODES, nodes=NODES,
        )  # fmt: skip
    (known, unknown), _ = own_runs([tmp_path])
    assert known.progress[-1].steps == 7
    assert unknown.progress[-1].steps is None
    words = ("--link", "1/1", "--task", "keywords", "--runs", str(tmp_path), "--accuracy", "0.5")
    answer = asked(capsys, empty, *words)
    assert any("local steps" in note for note in answer["unknown"])


def test_another_model_is_a_guess(sweep, empty, capsys):
    words = ("--link", "1/1", "--model", "lenet5", "--runs", str(sweep), "--accuracy", "0.9")
    answer = asked(capsys, empty, *words)
    assert any("guess" in note for note in answer["unknown"])
    factor = parameters("lenet5") / (MB / 4)
    dense = next(each for each in answer["settings"] if each["name"] == "fedavg")
    assert dense["up_bytes_per_device"] == pytest.approx(2 * MB * factor, rel=1e-3)
    own = asked(capsys, empty, *words[:2], "--model", "mine", "--parameters", "250000", *words[4:])
    dense = next(each for each in own["settings"] if each["name"] == "fedavg")
    assert dense["up_bytes_per_device"] == 2 * MB


def test_sizes_of_models_are_read_from_their_descriptions():
    assert parameters("lenet5") == 61_706
    assert parameters("resnet18") == 11e6
    assert parameters("nothing") is None


def test_asynchronous_runs_count_messages_under_way(tmp_path):
    pushes, size = 20, 100
    rows = [
        {"round": n, "accuracy": n / pushes, "uplink_bytes": n * size,
         "downlink_bytes": (n + NODES - 1) * size if n else 0, "virtual_seconds": n / NODES}
        for n in range(0, pushes + 1, NODES)
    ]  # fmt: skip
    words = f"algorithm=fedbuff network=ideal task=keywords nodes={NODES}"
    add_job(tmp_path / "a", words, rows, rounds=pushes, client_updates=pushes, nodes=NODES)
    ((run,), _) = own_runs([tmp_path])
    assert run.asynchronous
    assert run.progress[-1] == Progress(4, 4 * size, 4 * size, pytest.approx(400))


def asynchronous(folder):
    """Make a run of five nodes that reaches 0.5 after ten updates, two of each node."""
    rows = [
        {"round": n, "accuracy": n / 20, "uplink_bytes": n * 100,
         "downlink_bytes": (n + NODES - 1) * 100 if n else 0, "virtual_seconds": n / NODES}
        for n in range(0, 21, NODES)
    ]  # fmt: skip
    words = f"algorithm=fedbuff network=ideal task=keywords nodes={NODES}"
    add_job(folder, words, rows, rounds=20, client_updates=20, nodes=NODES)


def test_updates_and_bytes_are_those_of_the_same_devices(tmp_path, empty, capsys):
    asynchronous(tmp_path / "a")
    words = ["--link", "1/1", "--task", "keywords", "--runs", str(tmp_path), "--accuracy", "0.5"]
    for devices, more in ((NODES, []), (4 * NODES, ["--devices", str(4 * NODES)])):
        answer = asked(capsys, empty, *words, *more)
        (found,) = answer["settings"]
        assert found["devices"] == devices
        assert found["rounds"] == 2 * devices
        assert found["up_bytes_per_device"] == 2 * 100
        assert found["bytes"] == found["rounds"] * 2 * 100  # 100 bytes in each direction
        assert any("updates that a device sends" in n for n in answer["unknown"]) == bool(more)
        assert main([*words, *more], empty) == 0
        said = capsys.readouterr().out
        assert f"{2 * devices} updates of {devices} devices" in said
        assert f"for {devices} devices" in said


def test_the_text_says_why_a_time_is_outside_the_single_runs(tmp_path, empty, capsys):
    for seed, values in ((0, [0.1, 0.9, 0.5, 0.9]), (1, [0.1, 0.5, 0.9, 0.9])):
        add_run(tmp_path / f"a{seed}", f"algorithm=fedavg task=keywords seed={seed}",
                values, MB, MB)  # fmt: skip
    add_run(tmp_path / "b", "algorithm=stc task=keywords seed=0", [0.1, 0.9, 0.9], 1, 1)
    add_run(tmp_path / "c", "algorithm=stc task=keywords seed=1", [0.1, 0.8, 0.9, 0.9], 1, 1)
    words = ["--link", "1/1", "--task", "keywords", "--runs", str(tmp_path), "--accuracy", "0.9"]
    found = {each["name"]: each for each in asked(capsys, empty, *words)["settings"]}
    late = found["fedavg"]
    assert late["seconds"] > max(late["seconds_of_runs"])
    assert late["by_mean_curve"]
    # runs of different lengths have no mean curve
    assert not found["stc"]["by_mean_curve"]
    assert main(words, empty) == 0
    said = capsys.readouterr().out
    assert "the mean curve of these runs decides the time; single runs: 16" in said
    assert "the time is the mean of the runs that reach the goal; single runs" in said


@pytest.mark.system
def test_a_closed_pipe_ends_the_command_silently():
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "edgewire.report.advise", "--link", "10/1", "--task", "digits"]
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == -signal.SIGPIPE


def test_a_lucky_seed_does_not_decide(tmp_path):
    for seed, early in ((0, 0.9), (1, 0.2)):
        add_run(tmp_path / f"a{seed}", f"algorithm=fedavg task=keywords seed={seed}",
                [0.1, early, 0.7, 0.9, 0.9], MB, MB)  # fmt: skip
    runs, _ = own_runs([tmp_path])
    (found,) = rank(runs, asked_goal(runs, "accuracy", 0.88), parse_link("1/1"))
    assert [hit.rounds for hit in found.reached] == [1, 3]
    assert found.at.rounds == 3  # the means are 0.1, 0.55, 0.7 and 0.9


def test_without_a_mean_that_reaches_the_goal_the_times_are_averaged(tmp_path):
    for seed, values in ((0, [0.1, 0.9, 0.7]), (1, [0.1, 0.2, 0.9])):
        words = f"algorithm=fedavg task=keywords seed={seed}"
        add_run(tmp_path / f"a{seed}", words, values, MB, MB)
    runs, _ = own_runs([tmp_path])
    (found,) = rank(runs, asked_goal(runs, "accuracy", 0.88), parse_link("1/1"))
    assert found.at.rounds == 1.5


def test_the_energy_of_a_radio_has_three_parts():
    network = Network(up_mbps=2.0, down_mbps=4.0)
    spent = Progress(3, 1e6, 5e5, 0)
    watts = own_radio("3/5")
    assert joules(watts, network, spent, 100) == pytest.approx(2 * 3 + 2 * 5)
    lte = RADIOS["lte"]
    bare = 2 * (1.28804 + 2 * 0.43839) + 2 * (1.28804 + 4 * 0.05197)
    assert joules(lte, network, spent, 4) == pytest.approx(bare)
    assert joules(lte, network, spent, 14) == pytest.approx(bare + 10 * 1.06)
    assert joules(lte, network, spent, 1e6) == pytest.approx(bare + 6 * 11.576 * 1.06)
    assert joules(radio_named("lora"), Network(), spent, 4) == 0


def test_energy_is_printed_with_its_source(sweep, empty, capsys):
    words = ["--link", "lte", "--task", "keywords", "--runs", str(sweep), "--accuracy", "0.9"]
    assert main([*words, "--energy"], empty) == 0
    said = capsys.readouterr().out
    assert "a model" in said
    assert "Huang" in said
    answer = asked(capsys, empty, *words, "--watts", "1/1")
    assert answer["settings"][0]["joules_per_device"] > 0


@pytest.mark.parametrize(
    "experiment", ["advise", "few_bytes_async", "methods_federated", "deadline"]
)
def test_values_of_presets_are_those_that_hydra_composes(experiment):
    content = yaml.safe_load((CONF / "experiment" / f"{experiment}.yaml").read_text())
    cases = content["hydra"]["sweeper"]["cases"]
    for case in cases[:: max(1, len(cases) // 6)]:
        words = case.split()
        found = effective(dict(word.split("=", 1) for word in words), experiment)
        config = configured(f"experiment={experiment}", *words)
        assert int(found["nodes"]) == config.nodes
        assert found["algorithm"] == config.algorithm
        for group in ("dataset", "model"):
            file = CONF / group / f"{found[group]}.yaml"
            chosen = yaml.safe_load(file.read_text())
            kind = "_target_" if "_target_" in chosen else "name"
            assert chosen[kind] == composed(f"experiment={experiment}", *words)[group][kind]
        assert ("asynchronous" in config.strategy["_target_"]) == (
            found["strategy"] == "asynchronous"
        )
        if "local_steps" in found:
            assert int(found["local_steps"]) == config.local_steps


def test_presets_of_no_name_set_nothing():
    assert preset("algorithm", "../config") == {}
    assert preset("algorithm", "") == {}


def test_short_names_leave_out_what_all_settings_have():
    words = {"algorithm": "edgewire", "lr": "0.1", "task": "keywords", "local_steps": "20"}
    assert short_name(words) == "edgewire local_steps=20"
    assert short_name({}) == "default"


def test_the_stored_runs_of_the_papers_can_be_used():
    runs = archived_runs(ROOT)
    assert len({run.experiment for run in runs}) > 10
    found = choose(runs, None, "lenet5")
    assert found.runs
    ranked = rank(found.runs, default_goal(found.runs), parse_link("10/1"))
    assert math.isfinite(ranked[0].seconds)
    assert ranked[0].always
