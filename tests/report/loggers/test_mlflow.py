"""MLflow's store gets every row, whatever metrics are called, and whoever makes it meanwhile."""

import os
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgewire.report.loggers import following
from edgewire.report.loggers.following import logging_run
from edgewire.report.loggers.mlflow import MLflow, key_of
from tests.report.loggers.runs import finish, made_run, row

NAMES = st.text(alphabet="aB.@/: -_é\n\0\\%", max_size=12) | st.text(max_size=300)


@given(NAMES)
@example("a" * 241 + "/b")
def test_every_name_makes_a_key_that_mlflow_takes(name):
    from mlflow.utils.validation import path_not_unique, validate_param_and_metric_name

    key = key_of(f"metrics/{name}")
    assert validate_param_and_metric_name(key)
    assert not path_not_unique(key)
    assert len(key) <= 250


@pytest.mark.parametrize("name", ["accuracy", "F1", "mAP 0.5", "über", "node_3.x-y", "0/1"])
def test_what_mlflow_takes_stays(name):
    assert key_of(f"metrics/{name}") == f"metrics/{name}"


@pytest.mark.system
def test_a_metric_with_an_odd_name_is_logged_and_the_run_ends(tmp_path, monkeypatch):
    from mlflow import MlflowClient  # its import takes a second

    monkeypatch.setattr(following, "OFTEN", 0.01)
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with logging_run({"mlflow": MLflow(uri)}, made_run(tmp_path, group=None)):
        finish(tmp_path, [row(n, **{"recall@1": n / 10}) for n in range(4)])
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("edgewire").experiment_id])
    assert run.info.status == "FINISHED"
    found = client.get_metric_history(run.info.run_id, "metrics/recall_1")
    assert [each.value for each in found] == [0, 0.1, 0.2, 0.3]


@pytest.mark.system
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_jobs_that_make_a_store_at_once_all_begin(tmp_path):
    children = []
    for number in range(4):
        if (child := os.fork()) == 0:
            try:
                logger = MLflow(f"sqlite:///{tmp_path / 'new.db'}")
                logger.begin(made_run(tmp_path / f"{number}"))
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
