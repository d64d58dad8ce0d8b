"""`train` and `sweep`: runs from Python."""

import gc
import json
import logging
import os
import random
import signal
import sys
import threading
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from edgewire import RunFailed, sweep, train
from edgewire.command import python_api, run_result
from edgewire.command.exit import CALLER
from edgewire.command.run_result import RunResult, SweepResult
from edgewire.conf.load import HERE
from edgewire.report.reader import ResultsError
from tests.local_runs import at_row, raising
from tests.report.made_runs import add_job
from tests.runs import result_of

FEW = ["rounds=2", "nodes=3", "engine.workers=1"]
NAMES = st.from_regex("[a-z_]{1,6}", fullmatch=True).filter(lambda name: name not in WORDS)
WORDS = ("null", "true", "false", "nan", "inf")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """Work in an empty folder, and leave Flower's loggers as they were."""
    with pytest.MonkeyPatch.context() as patch:
        top = tmp_path_factory.mktemp("api")
        patch.chdir(top)
        saved = [(logging.getLogger(name), name) for name in ("edgewire", "flwr")]
        before = [(each.handlers, each.propagate, each.level) for each, _ in saved]
        yield top
        for (each, _), (handlers, propagate, level) in zip(saved, before, strict=True):
            each.handlers, each.propagate, each.level = handlers, propagate, level


@pytest.fixture(scope="module")
def trained(folder):
    return train("algorithm=edgewire", *FEW, lr=0.1, progress=False)


def test_a_run_returns_what_its_files_hold(trained, capsys):
    assert trained.folder.is_relative_to(Path.cwd())
    result = result_of(trained.folder)
    assert trained.metrics["accuracy"] == result["accuracy"]
    assert next(iter(trained.metrics)) == "accuracy"
    assert trained.config.lr == 0.1
    parts = ("bytes", "other_bytes", "header_bytes")
    assert trained.traffic.uplink == sum(result[f"uplink_{part}"] for part in parts)
    assert trained.traffic.uplink_plain > 10 * trained.traffic.uplink
    assert list(trained.history["round"]) == [0, 1, 2]
    assert trained.history["accuracy"].iloc[-1] == result["accuracy"]
    assert list(trained.nodes["partition"]) == [0, 1, 2]
    assert trained.nodes["uplink_bytes"].sum() == trained.traffic.uplink
    model = torch.nn.Sequential(*(torch.nn.Identity(), torch.nn.Linear(64, 200)))
    state = trained.state_dict()
    assert set(state) > {"1.weight"}
    assert state["1.weight"].shape[1] == 64 == model[1].in_features
    assert capsys.readouterr() == ("", "")
    assert (trained.diverged, trained.values["stopped"]) == (False, None)


def test_a_result_is_shown_as_text_and_picture(trained):
    assert "accuracy" in repr(trained)
    figure = trained.plot()
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert len(figure.axes[0].lines) == 1
    with pytest.raises(ResultsError, match="x must be one of"):
        trained.plot(x="nothing")
    with pytest.raises(ResultsError):
        trained.plot(y="nothing")
    with pytest.raises(ResultsError, match="holds no result"):
        RunResult(trained.folder / "nowhere")


def test_a_notebook_shows_a_card_and_the_report(trained):
    card, first = trained._repr_html_(), repr(trained).splitlines()[0]
    assert card.count(f"<b>{first}</b>") == 1
    assert "<polyline" in card
    page = trained.show(300)._repr_html_()
    assert page.startswith('<iframe srcdoc="&lt;!doctype html')
    assert 'height="300"' in page
    assert page.count('"') == 6  # the page's own quotes are escaped


def test_a_result_has_its_model_in_use(trained, monkeypatch):
    assert trained.classes == tuple("0123456789")
    low, high = trained.interval
    assert low < trained.metrics["accuracy"] < high
    assert trained.load_model().classes == trained.classes
    found = trained.predict(np.zeros((2, 1, 8, 8), np.uint8))
    assert {*map(str, found["class"])} < set(trained.classes)
    monkeypatch.setattr(run_result, "exported", lambda _, run, kind, out: (run, kind, out))
    assert trained.export("torch", "x.pt2") == (trained.folder, "torch", "x.pt2")
    with pytest.raises(RunFailed, match="there is no such file"):
        trained.predict("nowhere.csv")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["rounds=x"], "rounds=x: Value 'x'"),
        (["algoritm=esgd"], "did you mean algorithm"),
        (["--help"], "is no override"),
        (["-m"], r"call sweep\(\)"),
        (["rounds"], "is no override"),
        ([3], "is no override"),
        (["nodes=0"], "nodes"),
        (["resume=/nowhere"], "resume=/nowhere"),
        (["strategy.min_train_nodes=9", *FEW], "nodes"),
    ],
)
def test_a_mistake_is_one_exception_and_leaves_no_folder(words, line, folder, capsys):
    before = sorted(folder.rglob("*"))
    with pytest.raises(RunFailed, match=line) as raised:
        train(*words)
    assert "\n" not in str(raised.value)
    assert raised.value._render_traceback_() == [f"RunFailed: {raised.value}"]
    assert not CALLER.python
    assert capsys.readouterr().err == ""
    left = {path for path in folder.rglob("*") if path not in before and not path.is_dir()}
    assert all(".hydra" in path.parts for path in left)


def test_a_diverged_run_warns_and_has_a_result():
    with pytest.warns(UserWarning, match="the run has diverged; try a lower lr"):
        result = train(*FEW, lr=1e30)
    assert result.diverged


@pytest.mark.system
def test_a_sweep_returns_all_runs_and_why_jobs_failed():
    found = sweep("nodes=3", rounds=1, algorithm=["fedavg", "fedavg_f2i"], lr=(0.1, 0.05, -1))
    assert len(found) == 4
    assert len(found.failed) == 2
    assert all("lr" in line for line in found.failed.values())
    assert isinstance(found.table, pd.DataFrame)
    assert list(found.table["algorithm"]) == ["fedavg"] * 2 + ["fedavg_f2i"] * 2
    assert found.table["uplink_bytes"].max() > 4 * found.table["uplink_bytes"].min()
    assert len(found.plot().axes[0].lines) == 4
    assert [run.folder.parent for run in found] == [found.folder] * 4
    assert found.comparison["method"][0].startswith("fedavg, lr=")
    assert found.comparison["against uncompressed"][0] == "-"
    assert all(
        line in repr(found) and line in found._repr_html_() for line in found.failed.values()
    )


def test_the_best_run_is_the_soonest_at_a_goal_or_has_the_best_value(tmp_path):
    def run(name, values, sent):
        history = [{"round": n, "accuracy": value, "uplink_bytes": n * sent,
                    "downlink_bytes": n * sent} for n, value in enumerate(values)]  # fmt: skip
        more = {"accuracy": values[-1], "nodes": 1, "client_updates": len(values) - 1}
        add_job(tmp_path / name, f"algorithm={name[:-1]} seed={name[-1]}", history, **more)

    for seed in (0, 1, 2):
        run(f"fedavg{seed}", [0.1, 0.5 + seed / 10, 0.97], 100_000)
        run(f"esgd{seed}", [0.1, 0.2, 0.6, 0.91 + seed / 100], 1000)
    found = SweepResult(tmp_path)
    assert found.best().folder.name == "fedavg1"
    assert found.best(0.9).folder.name.startswith("esgd")
    assert found.best(0.95).folder.name.startswith("fedavg")
    assert found.best(0.05).values["accuracy"]  # the untrained model does not count
    for asked, line in (({"goal": 0.99}, "reaches 0.99"), ({"goal": 0.9, "network": "x"}, "x")):
        with pytest.raises(RunFailed, match=line):
            found.best(**asked)


def test_the_users_own_hydra_and_arguments_are_as_before(trained, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mine.py", "--own"])
    with initialize_config_dir(str(HERE), version_base="1.3"):
        own = GlobalHydra.instance().hydra
        train(*FEW, rounds=1)
        assert GlobalHydra.instance().hydra is own
        assert compose("config", ["nodes=7"]).nodes == 7
    assert sys.argv == ["mine.py", "--own"]


MINE = """
import torch

def make():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""


def make_model():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))


def test_a_function_takes_the_place_of_a_choice():
    result = train(*FEW, "dataset=digits", model=make_model)
    assert set(result.state_dict()) == {"1.weight", "1.bias"}


@given(VALUES)
def test_hydra_reads_values_as_they_were(value):
    words = [python_api.override_of("key", value)]
    (parsed,) = OverridesParser.create().parse_overrides(words)
    assert json.dumps(plain(parsed.value())) == json.dumps(plain(value))


def plain(value):
    """Return a value with its keys and texts as `str`, not as Hydra's quoted strings."""
    if isinstance(value, dict):
        return {str(plain(k)): plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.text if hasattr(value, "text") else value


def test_interrupted_runs_say_how_to_go_on(monkeypatch, folder, capsys):
    at_row(monkeypatch, 3, raising(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt) as stop:
        train(*FEW, rounds=4, progress=False)
    (note,) = stop.value.__notes__
    assert "train(resume=" in note or "starts a new run" in note
    assert note in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"model": torch.nn.Linear(2, 2)}, "give the class"),
        ({"model": partial(torch.nn.Linear, 2)}, "give the class"),
        ({"model": lambda: None}, "defined outside of other"),
        ({"lr": object()}, "is no value of an override"),
        ({"strategy": {"a b": 1}}, "a b"),
    ],
)
def test_values_that_are_no_overrides_are_one_line(values, line):
    with pytest.raises(RunFailed, match=line):
        train(**values)


def test_a_key_may_be_removed_as_on_the_command_line():
    assert "momentum" not in train("~optimizer.momentum", *FEW, rounds=1).config.optimizer


def test_the_folder_of_a_run_is_given_without_quotes():
    """The command reads `resume=` and `continue=` itself; Hydra, which reads quotes, does not."""
    with pytest.raises(RunFailed, match=r"^resume=/no where: there is no such folder"):
        train(resume="/no where")
    with pytest.raises(RunFailed, match=r"^continue=/no where: there is no sweep"):
        sweep(**{"continue": Path("/no where")})


@pytest.mark.system
def test_a_folder_with_choices_of_the_users_own(tmp_path):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    file = tmp_path / "conf" / "experiment" / "short.yaml"
    file.write_text("# @package _global_\nrounds: 1\nnodes: 2\n")
    words = ["experiment=short", "engine.workers=1"]
    run = train(*words, config_dir=tmp_path / "conf", progress=False)
    (other,) = sweep(*words, config_dir=str(tmp_path / "conf"), progress=False)
    assert [each.config.nodes for each in (run, other)] == [2, 2]


def test_numbers_of_numpy_are_numbers():
    assert python_api.override_of("lr", np.float64(0.1)) == "lr=0.1"
    assert python_api.override_of("cuts", np.arange(3)) == "cuts=[0,1,2]"
    with pytest.raises(RunFailed, match="names no value"):
        sweep(seed=[])


def test_jobs_that_were_not_begun_are_named_and_continued():
    found = sweep("stop_on_failure=true", *FEW, rounds=1, lr=[-1, 0.1])
    assert (len(found), len(found.failed), len(found.not_begun)) == (0, 1, 1)
    assert "not begun" in repr(found)
    again = sweep(f"continue={found.folder}")
    assert again.folder == found.folder


def test_a_failed_job_leaves_no_result_of_an_earlier_sweep(folder):
    where = "hydra.sweep.dir=again"
    assert len(sweep(where, *FEW, rounds=1, seed=[4])) == 1
    found = sweep(where, *FEW, rounds=1, seed=[5], lr=[-1])
    assert (len(found), len(found.failed)) == (0, 1)


def test_one_run_at_a_time_in_a_process():
    said = []

    def second():
        try:
            train(*FEW)
        except RunFailed as error:
            said.append(str(error))

    with python_api.ONE_RUN:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert len(said) == 1
    assert "a run is under way" in said[0]


def global_states():
    """Return the states of this process that code beside a run may rely on."""
    named = logging.root.manager.loggerDict.values()
    loggers = [logging.root, *(each for each in named if isinstance(each, logging.Logger))]
    return {
        "Python": random.getstate(),
        "NumPy": str(np.random.get_state()),  # noqa: NPY002
        "torch": torch.get_rng_state().tolist(),
        "variables": dict(os.environ),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "loggers": {e.name: (e.level, [*e.handlers], e.propagate, e.disabled) for e in loggers},
        "warnings": [*warnings.filters],
        "of torch": (torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()),
        "path": [*sys.path],
        "arguments": [*sys.argv],
        "place": (Path.cwd(), gc.isenabled(), sys.excepthook, sys.stdout, sys.stderr),
    }


RUNS = {
    "own package": (train, ["packages=[mine]", "model._target_=mine.make", "dataset=digits"]),
    "verbose": (train, ["algorithm=edgewire", "verbose=true"]),
    "an unknown key": (train, ["algoritm=fedavg"]),
    "interrupted": (train, ["algorithm=fedavg"]),
    "a sweep": (sweep, ["seed=1,2", "strategy.fraction_train=0.5", "algorithm=fedavg"]),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("case", RUNS)
def test_every_global_state_is_as_before(case, trained, folder, monkeypatch):
    make, words = RUNS[case]
    (folder / "mine.py").write_text(MINE)
    monkeypatch.delenv("no_proxy", raising=False)
    for name in ("edgewire", "flwr"):
        logging.getLogger(name)
    if case == "interrupted":
        at_row(monkeypatch, 2, raising(KeyboardInterrupt))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # the run takes one
    before = global_states()
    with suppress(RunFailed, KeyboardInterrupt):
        make(*FEW, *words, progress=False)
    after = global_states()
    torch.set_num_threads(threads)
    for name in after["loggers"].keys() - before["loggers"].keys():
        del after["loggers"][name]  # of modules that the run has imported
    assert after == before
