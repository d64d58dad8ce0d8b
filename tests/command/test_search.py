"""`compare goal=`: the order of methods at a goal, the fewest bytes, and the commands it prints."""

import math
import re
import shlex
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from edgewire.command import search
from edgewire.command.compare import Comparison, Method, compare
from edgewire.command.main import cli
from edgewire.command.search import further, judge, losses, print_commands, reached
from edgewire.conf.network import only_virtual
from edgewire.report.reader import ResultsError
from edgewire.report.runs import Run
from edgewire.task.metric import ACCURACY, Metric
from tests.runs import composed, configured, history_of

MAE = Metric("mae")
QUICK = ["nodes=2", "rounds=4", "engine.workers=1", "local_steps=4", "algorithm=fedavg_f2i_both"]


def ran(values, seconds=1.0, metric=ACCURACY, diverged=False, seed=0):
    """Return a run whose rounds take `seconds` each."""
    rows = [
        {"round": n, metric.name: value, "virtual_seconds": n * seconds}
        for n, value in enumerate(values)
    ]
    shown = {metric.name: {"name": metric.name, "higher": metric.higher, "share": metric.share}}
    result = {"seed": seed, "metrics": shown, metric.name: values[-1], "diverged": diverged}
    return Run({}, result, lambda: rows)


RUNS = {
    Method("slow"): ran([0.1, 0.8, 0.9], seconds=9),
    Method("fast"): ran([0.1, 0.5, 0.8, 0.85], seconds=1),
    Method("weak"): ran([0.1, 0.2, 0.3], seconds=0.1),
    Method("quick"): ran([0.1, 0.7, 0.84], seconds=0.5),
    Method("lost"): ran([0.1, 0.99], seconds=0.1, diverged=True),
    Method("blind"): ran([None, None]),
}


def order(runs, goal, metric=ACCURACY):
    return [each.name for each in judge(runs, metric, goal)]


def test_the_soonest_at_a_goal_that_half_reach_comes_first():
    runs = {method: RUNS[method] for method in list(RUNS)[:4]}
    assert order(runs, 0.85) == ["fast", "slow", "quick", "weak"]


def test_at_a_goal_that_few_reach_the_level_is_one_that_half_reach():
    found = order(RUNS, 0.9)
    assert found[:4] == ["quick", "fast", "slow", "weak"]
    assert {*found[4:]} == {"lost", "blind"}


def test_a_preset_is_judged_by_its_best_rate():
    runs = {
        Method("a", "0.1"): ran([0.1, 0.9]),
        Method("a", "0.3"): ran([0.1, 0.2, 0.95], 0.2),
        Method("b", "0.1"): ran([0.1, 0.6]),
        Method("b", "0.3"): ran([0.1, 0.7]),
    }
    assert [(each.name, each.lr) for each in judge(runs, ACCURACY, 0.9)] == [
        ("a", "0.3"),
        ("b", "0.3"),
    ]


def test_less_is_better_for_an_error():
    values = {"good": 0.1, "fair": 0.11, "bad": 3.0}
    runs = {Method(name): ran([9, last], metric=MAE) for name, last in values.items()}
    assert order(runs, 0.05, MAE)[-1] == "bad"
    assert order(runs, 0.1, MAE)[0] == "good"


@pytest.mark.parametrize(
    ("goal", "runs", "said"),
    [
        (0.1, RUNS, r"already reaches accuracy 10\.00 %"),
    ],
)
def test_goals_without_an_order_are_refused(goal, runs, said):
    with pytest.raises(ResultsError, match=said):
        order(runs, goal)


@given(st.lists(st.floats(0.01, 1), min_size=1), st.floats(0, 1.2), st.booleans())
def test_a_run_reaches_a_level_in_the_first_round_that_has_it(values, level, higher):
    metric = Metric("value", higher)
    seconds, best = reached(ran(values, 2.0, metric), metric, level)
    at = [n for n, v in enumerate(values) if (v >= level if higher else v <= level)]
    assert seconds == (2.0 * at[0] if at else math.inf)
    assert abs(best) == (max if higher else min)(values)


@given(st.lists(st.floats(-3, 3), min_size=10, max_size=10))
def test_a_further_loss_is_below_the_upper_end_of_students_interval_for_one_more(values):
    bound = fmean(values) + student.ppf(0.9, 9) * stdev(values) * math.sqrt(1 + 1 / 10)
    assert further(values) == pytest.approx(bound, abs=0.01)


def test_one_loss_or_a_run_without_one_is_no_bound():
    assert further([0.1]) == further([math.inf]) == math.inf


@pytest.mark.parametrize(
    ("metric", "ours", "theirs", "lost"),
    [
        (ACCURACY, 0.96, 0.97, 1.0),
        (ACCURACY, 0.98, 0.97, -1.0),
        (MAE, 1.03, 1.0, 1.0),
        (MAE, 0.0, 0.0, 0.0),
        (Metric("r2", True), 0.97, 1.0, 1.0),
        (MAE, None, 1.0, math.inf),
    ],
)
def test_a_loss_is_in_points_or_thirds_of_a_percent(metric, ours, theirs, lost):
    runs = [[ran([value], metric=metric, seed=3)] for value in (ours, theirs)]
    assert losses(*runs) == pytest.approx([lost])
    spread = [ran([theirs + d], metric=metric, seed=n) for n, d in enumerate((-0.01, 0.01))]
    assert losses(runs[0], spread) == pytest.approx([lost], abs=1e-9)  # of their mean


@pytest.fixture
def printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = compare(list(words), search.search)
        return code, capsys.readouterr().out

    return run


def command(name, text):
    """Return the words of a command that a search has printed."""
    return shlex.split(re.search(rf"^{name} +python run.py (.*)$", text, re.M)[1])


@pytest.mark.parametrize("name", ["edgewire", "fedbuff"])
def test_the_commands_make_the_chosen_run_here_and_on_devices(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    asked = Comparison(["network=1/0.5", "screen.refuse=null", "nodes=4", "rounds=30"])
    print_commands(asked, Method(name, "0.02", (), name == "fedbuff"), 7)
    text = capsys.readouterr().out
    same = composed(*command("run it", text))
    assert (same.seed, same.network.up_mbps, same.lr) == (7, 0.5, 0.02)
    devices = command("on devices", text)
    assert not any(word.startswith(("seed", "engine.")) for word in devices)
    assert only_virtual(configured(*devices).network) == ""


@pytest.mark.system
def test_the_chosen_run_reaches_the_goal_at_the_printed_time(printed, tmp_path, monkeypatch):
    code, text = printed(*QUICK, "lr=0.1", "network=1/0.5", "goal=accuracy:0.6")
    assert code == 0
    shown = re.search(r"^\S.* ([\d.]+) s +[\d.]+ % ", text, re.M)[1]  # the first row
    assert "engine.workers" not in text.partition("on devices")[2]
    monkeypatch.setattr("sys.argv", ["run.py", *command("run it", text)])
    cli()
    (folder,) = (path.parent for path in tmp_path.glob("outputs/*/*/result.json"))
    reached = next(r["virtual_seconds"] for r in history_of(folder) if r["accuracy"] >= 0.6)
    assert float(shown) == pytest.approx(reached, rel=0.01)


@pytest.mark.system
def test_a_goal_that_no_method_reaches_has_its_own_exit_code(printed):
    words = ["seed=0", "network=lora", "goal=accuracy:1", "rounds=2", "lr=0.1"]
    code, text = printed(*QUICK, *words)
    assert code == search.NOT_REACHED
    assert re.search(r"the goal is not reached: the best is \S+ % \(\S+\)", text)


@pytest.mark.system
@pytest.mark.parametrize(
    ("limit", "code"), [pytest.param("999", 0, marks=pytest.mark.system), ("1e-9", 3)]
)
def test_the_fewest_bytes_within_a_limit(limit, code, printed, monkeypatch):
    monkeypatch.setattr(search, "NEW_SEEDS", 2)
    monkeypatch.setattr(search, "FIDELITIES", ("low",))
    words = ["rounds=2", "seed=0", "lr=0.1", "algorithm=edgewire"]
    found, text = printed(*QUICK, *words, f"goal=within:{limit}")
    assert found == code
    assert "few bytes (edgewire) fidelity=low" in text
    if code == 0:
        assert re.search(r"on devices .* algorithm=edgewire fidelity=low lr=0.1", text)
        assert "validate" not in text.partition("on devices")[2]
