"""Short real runs with loggers; what the tools have stored is read back by the tools themselves."""

import csv
import json
import os
import sys

import pytest

from edgewire.conf.load import load_config, run_config
from edgewire.report.loggers import following
from tests.runs import QUICK, composed, history_of, result_of

SMALL = ["algorithm=esgd", "seed=1", "nodes=2", "rounds=5", "engine.workers=1", "batch_size=16"]


def scalars(folder):
    """Return TensorBoard's scalars: tag -> the (step, value) pairs."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    found.Reload()
    return {
        tag: [(each.step, each.value) for each in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


@pytest.fixture
def store(tmp_path):
    """Return the override of MLflow's store, and a function that returns its only run."""
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"

    def only():
        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("edgewire")
        (run,) = client.search_runs([experiment.experiment_id])
        return run, lambda key: [
            (each.step, each.value) for each in client.get_metric_history(run.info.run_id, key)
        ]

    return f"logger.mlflow.tracking_uri={uri}", only


@pytest.mark.system
def test_a_run_is_in_tensorboard_mlflow_and_a_table(command, store):
    given, only = store
    code, printed, folder = command(*QUICK, "logger=[csv,tensorboard,mlflow]", given)
    assert (code, printed.err) == (0, "")
    rows = history_of(folder)
    shown = scalars(folder / "tensorboard")
    run, metric = only()
    accuracy = [(row["round"], pytest.approx(row["accuracy"])) for row in rows]
    sent = [(row["round"], row["uplink_bytes"]) for row in rows]
    assert shown["metrics/accuracy"] == accuracy
    assert metric("metrics/accuracy") == accuracy
    assert shown["bytes/uplink_bytes"] == metric("bytes/uplink_bytes") == sent
    best = pytest.approx(result_of(folder)["best_accuracy"])
    assert shown["result/best_accuracy"] == [(3, best)]
    assert metric("result/best_accuracy") == [(3, best)]
    assert run.info.status == "FINISHED"
    assert run.info.run_name == f"{folder.parent.name}_{folder.name}"
    assert run.data.tags["ended"] == "finished"
    assert run.data.params["nodes"] == "10"
    assert run.data.params["compression.quantizer"] == "int8"
    assert not any(key.startswith("logger") for key in run.data.params)
    with (folder / "history.csv").open() as file:
        assert [int(row["round"]) for row in csv.DictReader(file)] == [0, 1, 2, 3]


@pytest.mark.system
def test_a_resumed_run_goes_on_in_the_same_run_of_each_tool(cli, store, broken, tmp_path):
    given, only = store
    folder = tmp_path / "stopped"
    words = ["logger=[csv,tensorboard,mlflow]", given, f"hydra.run.dir={folder}"]
    assert cli(*SMALL, *words)[0] == 1
    run, _ = only()
    assert (run.info.status, run.data.tags["ended"]) == ("FAILED", "failed")
    broken.undo()
    code, printed = cli(f"resume={folder}")
    assert (code, printed.err) == (0, "")
    run, metric = only()
    assert (run.info.status, run.data.tags["ended"]) == ("FINISHED", "finished")
    shown = scalars(folder / "tensorboard")
    steps = [0, 1, 2, 3, 4, 5]
    assert [step for step, _ in metric("bytes/uplink_bytes")] == steps
    assert [step for step, _ in shown["bytes/uplink_bytes"]] == steps


@pytest.mark.system
def test_the_jobs_of_a_sweep_are_named_after_it(command):
    code, _, folder = command("-m", *QUICK, "logger=csv", "seed=0,1")
    assert code == 0
    name = f"{folder.parent.name}_{folder.name}"
    for job in "01":
        state = json.loads((folder / job / ".loggers" / "csv.json").read_text())
        assert (state["name"], state["group"]) == (f"{name}_{job}", name)


def test_a_missing_package_is_one_line_that_names_the_extra(command, monkeypatch):
    monkeypatch.setattr(following, "find_spec", lambda package: None)
    code, printed, _ = command(*QUICK, "logger=mlflow")
    line = "error: logger.mlflow needs the package mlflow: pip install -e '.[mlflow]'\n"
    assert (code, printed.err) == (2, line)


OWN = """
from edgewire.report.loggers import Logger

class Lines(Logger):
    def __init__(self, file: str) -> None:
        self.file = file

    def log(self, rows):
        with open(self.file, "a") as file:
            file.writelines(f"{row['round']}\\n" for row in rows)

    def finish(self, ended, result):
        with open(self.file, "a") as file:
            file.write(ended)
"""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "words",
    [
        ["logger._target_=my_lines_{0}.Lines", "logger.file={1}"],
        ["logger=csv", "+logger.mine._target_=my_lines_{0}.Lines", "+logger.mine.file={1}"],
        ["packages=[my_lines_{0}]", "logger._target_=Lines", "logger.file={1}"],
    ],
)
def test_a_logger_of_the_users_own(command, tmp_path, monkeypatch, words):
    name, file = os.urandom(4).hex(), tmp_path / "lines.txt"
    (tmp_path / f"my_lines_{name}.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    code, printed, folder = command(*QUICK, *(word.format(name, file) for word in words))
    assert (code, printed.err) == (0, "")
    assert file.read_text().splitlines() == ["0", "1", "2", "3", "finished"]
    assert (folder / "history.csv").exists() == ("logger=csv" in words)


def test_no_other_machine_gets_the_loggers():
    values = run_config(composed("logger=[csv,mlflow]"))
    assert "logger" not in json.loads(values["config"])
    assert not load_config(values, 10).logger
    assert values == run_config(composed())


def test_a_node_makes_no_logger_of_a_submitted_configuration():
    values = run_config(composed())
    config = {**json.loads(values["config"]), "logger": {"x": {"_target_": "nowhere.Bait"}}}
    made = load_config({**values, "config": json.dumps(config)}, 10)
    assert made.logger == {"x": {"_target_": "nowhere.Bait"}}  # it is read, and nothing is imported
