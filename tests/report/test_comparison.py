"""Methods are compared in a table: differences have words, and times are over a link."""

import pytest

from edgewire.conf.network import network_named
from edgewire.report.comparison import comparison, verdict
from edgewire.report.estimate import Estimate
from edgewire.report.link_time import seconds_over
from edgewire.report.runs import read_runs
from edgewire.task.metric import ACCURACY, Metric
from tests.report.made_runs import add_job, finals, made

MAE = Metric("mae")


@pytest.mark.parametrize(
    ("mean", "std", "metric", "said"),
    [
        (0.0, 0.0, ACCURACY, "0: no loss seen"),
        (-1.1, 0.2, ACCURACY, "-1.1 ± 0.5 points: a loss"),
        (1.1, 0.2, ACCURACY, "+1.1 ± 0.5 points: a gain"),
        (-0.1, 0.2, ACCURACY, "-0.1 ± 0.5 points: no loss seen"),
        (-0.5, 0.4, ACCURACY, "-0.5 ± 1.0 points: unclear"),
        (-0.5, None, ACCURACY, "-0.5 points: one seed"),
        (0.32, 0.02, MAE, "+0.3200 ± 0.0497: a loss"),
        (-0.32, 0.02, MAE, "-0.3200 ± 0.0497: a gain"),
        (0.001, 0.001, MAE, "+0.0010 ± 0.0025: no loss seen"),
    ],
)
def test_a_difference_has_a_verdict_in_words(mean, std, metric, said):
    assert verdict(Estimate(mean, std, 1 if std is None else 3), metric, 0.2) == said


def test_a_table_without_an_uncompressed_method_compares_with_none():
    found = {"a": finals(0.9, 0.8), "b": [made()]}
    heads = [[str(each.header) for each in comparison(found, name).columns] for name in ("a", None)]
    names = ["method", "accuracy", "against uncompressed", "up", "down", "over lora", "energy"]
    assert heads[0] == names
    assert heads[1] == [head for head in heads[0] if head != "against uncompressed"]


def test_different_numbers_of_rounds_are_in_the_table():
    """20 updates of each of 10 nodes are 20 rounds."""
    found = {"a": [made(rounds=10)], "b": [made(rounds=200, nodes=10, staleness=1.0)]}
    last = comparison(found, "a").columns[-1]
    assert [last.header, *last.cells] == ["rounds", "10", "20"]
    assert comparison({"a": found["a"]}, "a").columns[-1].header == "energy"


def test_a_run_whose_link_decides_which_replies_are_used_has_no_time_on_another(tmp_path):
    history = [{"round": n, "uplink_bytes": 9 * n, "downlink_bytes": 9 * n} for n in range(3)]
    add_job(tmp_path, "algorithm=esgd", history, nodes=2)

    def times():
        (run,) = read_runs([tmp_path])[0]
        return seconds_over(network_named("lora"), run.history(), run.result, run.configuration)

    assert times()[-1] > 4  # two rounds, with a second of latency in each direction
    (tmp_path / ".hydra" / "config.yaml").write_text("strategy: {deadline: 3}")
    assert times() == [None] * 3
