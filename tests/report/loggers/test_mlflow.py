"""MLflow's store gets every row, whatever metrics are called, and whoever makes it meanwhile."""

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewire.report.loggers import Logger, following
from edgewire.report.loggers.following import logging_run
from edgewire.report.loggers.mlflow import MLflow, key_of
from tests.report.loggers.runs import finish, made_run, row

NAMES = st.text(alphabet="aB.@/: -_é\n\0\\%", max_size=12) | st.text(max_size=300)


@given(NAMES)
def test_every_name_makes_a_key_that_mlflow_takes(name):
    from mlflow.utils.validation import path_not_unique, validate_param_and_metric_name

    for key in (key_of(name), key_of(f"metrics/{name}")):
        assert validate_param_and_metric_name(key)
        assert not path_not_unique(key)
        assert 0 < len(key) <= 250


@given(st.lists(NAMES, unique=True, min_size=2, max_size=2))
def test_two_names_have_two_keys(names):
    assert key_of(names[0]) != key_of(names[1])


@pytest.mark.parametrize("name", ["accuracy", "F1", "mAP 0.5", "über", "node_3.x-y"])
def test_what_mlflow_takes_stays(name):
    assert key_of(f"metrics/{name}") == f"metrics/{name}"


@pytest.mark.system
def test_a_metric_with_an_odd_name_is_logged_and_the_run_ends(tmp_path, monkeypatch):
    from mlflow import MlflowClient  # its import takes a second

    monkeypatch.setattr(following, "OFTEN", 0.01)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with logging_run({"mlflow": MLflow(uri)}, made_run(tmp_path)):
        finish(tmp_path, [row(n, **{"recall@1": n / 10}) for n in range(4)])
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("edgewire").experiment_id])
    assert run.info.status == "FINISHED"
    found = client.get_metric_history(run.info.run_id, key_of("metrics/recall@1"))
    assert found[-1].value == 0.3  # of short runs MLflow gets some rows only


@pytest.mark.system
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_jobs_that_make_a_store_at_once_all_begin(tmp_path):
    children = []
    for number in range(4):
        if (child := os.fork()) == 0:
            try:
                MLflow(f"sqlite:///{tmp_path / 'new.db'}").begin(
                    made_run(tmp_path, name=f"{number}")
                )
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4


def test_loggers_whose_names_are_paths_keep_their_state_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "OFTEN", 0.01)

    class Quiet(Logger):
        def log(self, rows):
            pass

    names = ("../../up", "/abs", "a/b", "A", "a", "é" * 300)
    folder = tmp_path / "in" / "run"
    folder.mkdir(parents=True)
    with logging_run({name: Quiet() for name in names}, made_run(folder)):
        finish(folder, [row(0), row(1)])
    assert len({each.name.lower() for each in (folder / ".loggers").iterdir()}) == len(names)
    assert [each.name for each in tmp_path.rglob("*.json") if folder not in each.parents] == []
