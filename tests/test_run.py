"""The command as a user runs it: its output and its files."""

import json
import re

import pytest
from safetensors.torch import load_file

from edgewire.conf.build import data_of, model_of
from edgewire.conf.load import compose_config, to_config
from edgewire.task.flat_model import FlatModel
from edgewire.task.objectives.classification import Classification
from edgewire.task.steps import evaluate
from tests.runs import QUICK, ROOT, result_of, write_photos

# The time for a training step on a device.
STEP = "network.seconds_per_step=0.01"
STRATEGIES = sorted(path.stem for path in (ROOT / "conf" / "strategy").glob("*.yaml"))


def test_a_run_leaves_its_result_history_and_weights(command):
    code, printed, folder = command(*QUICK, "algorithm=fedavg_f2i", "network=adsl")
    assert code == 0
    assert "accuracy" in printed.out
    result = result_of(folder)
    keys = """accuracy best_accuracy loss rounds client_updates uplink_bytes downlink_bytes versions
    uplink_bytes_float32 downlink_bytes_float32 uplink_ratio downlink_ratio seconds
    virtual_seconds failures"""
    assert all(result[key] is not None for key in keys.split())
    assert result["rounds"] == 3
    assert result["client_updates"] == 30
    assert result["failures"] == 0
    assert result["accuracy"] > 0.8
    assert 3.5 < result["uplink_ratio"] < 12
    for way in ("uplink", "downlink"):
        other, headers = (result[f"{way}_{what}_bytes"] for what in ("other", "header"))
        plain, sent = result[f"{way}_bytes_float32"], result[f"{way}_bytes"] + headers
        assert 0 < 30 * 20 < headers < 30 * 200 > other > 30 * 20  # about 100 bytes a message
        assert result[f"{way}_ratio"] == (plain + other) / (sent + other)
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [row["round"] for row in rows] == [0, 1, 2, 3]
    for key in ("uplink_bytes", "downlink_bytes", "client_updates", "virtual_seconds"):
        values = [row[key] for row in rows]
        assert values == sorted(values)
        assert values[0] == 0
        assert values[-1] == result[key]

    config = to_config(compose_config([]))
    data = data_of(config)
    model = FlatModel(model_of(config, data))
    for name, tensor in load_file(folder / "model.safetensors").items():
        model.state_dict()[name].copy_(tensor)
    images = data.prepared(data.test.inputs)
    loss, accuracy, _ = evaluate(model.module, Classification(), images, data.test.targets).values()
    assert accuracy == result["accuracy"]
    assert loss == pytest.approx(result["loss"])


def numbers(text, name):
    """Return the numbers of a summary's line."""
    (line,) = re.findall(rf"^{name} .*$", text, re.MULTILINE)
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", line)]


def test_the_first_run_learns_and_sends_the_bytes_in_the_tutorial(command):
    code, printed, folder = command("engine.workers=1")
    result, tutorial = result_of(folder), (ROOT / "docs" / "tutorial.md").read_text()
    shown = tutorial.partition("hydra.run.dir=runs/first\n")[2].split("```")[2]
    assert code == 0
    assert result["accuracy"] >= 0.96
    assert "10 Mbit/s down, 2 Mbit/s up" in printed.out
    for name in ("digits", "up, down", "on a link", "nodes"):
        # Another zstd version or CPU changes a few bytes of each update.
        assert numbers(printed.out, name) == pytest.approx(numbers(shown, name), rel=5e-3), name


def test_a_run_over_a_link_takes_the_time_that_another_run_states_for_it(command):
    stated, there = (
        result_of(command(*QUICK, *words)[2])
        for words in ((), ("network.down_mbps=10", "network.up_mbps=2"))
    )
    assert there["virtual_seconds"] == pytest.approx(stated["link_seconds"], rel=1e-9)
    assert there["link_seconds_float32"] == stated["link_seconds_float32"]


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_learns(command, strategy):
    cut = ["rounds=10", "downlink=full", "lr=0.01"]
    length = {
        "asynchronous": ["strategy.pushes=100", "downlink=full"],
        "synthetic_gradients": [*cut, "model=four_layers"],
        "split_backprop": [*cut, "model=four_layers"],
        "sparse_averaging": ["rounds=5"],
    }.get(strategy, ["rounds=5", "local_steps=4"])
    code, _, folder = command(*QUICK, *length, f"strategy={strategy}", "compression=f2i")
    assert code == 0
    first, *_, last = (folder / "history.jsonl").read_text().splitlines()
    assert json.loads(last)["loss"] < json.loads(first)["loss"]
    assert result_of(folder)["failures"] == 0


def test_evaluation_at_the_nodes(command):
    words = ["algorithm=fedavg", "strategy.fraction_evaluate=1", "dataset.holdout=0.2"]
    code, _, folder = command(*QUICK, *words)
    assert code == 0
    # Evaluation messages carry the model too.
    result = result_of(folder)
    assert result["downlink_bytes"] == pytest.approx(2 * result["uplink_bytes"], rel=0.01)
    assert result["node_accuracy"] > 0.8


def test_a_node_that_fails_in_evaluation_is_counted_and_named(command):
    code, printed, folder = command(
        "rounds=1", "engine.workers=1", "strategy.fraction_evaluate=1", "dataset.holdout=0.001"
    )
    assert code == 0
    assert result_of(folder)["failures"] == 10
    assert "no samples" in printed.out


def test_a_submitted_run_looks_for_photos_in_the_servers_folder(command, tmp_path, monkeypatch):
    write_photos(tmp_path / "photos")
    monkeypatch.setenv("EDGEWIRE_DATA", str(tmp_path))
    words = ["engine=superlink", "engine.address=127.0.0.1:9", "dataset=imagefolder"]
    for root in (str(tmp_path / "photos"), "../photos"):
        code, printed, _ = command(*words, f"dataset.root={root}")
        assert code == 2
        assert "a folder below this machine's own for that" in printed.err
    code, printed, _ = command(*words, "dataset.root=photos", "dataset.size=8", "nodes=2")
    assert code == 1  # the server may only be about to start
    assert "no SuperLink answers" in printed.err


def test_a_folder_of_photos_trains(command, tmp_path):
    write_photos(tmp_path / "photos")
    words = ["dataset=imagefolder", f"dataset.root={tmp_path / 'photos'}", "dataset.size=8"]
    assert command(*QUICK, *words, "nodes=3")[0] == 0


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no SuperLink answers"),
        (["strategy.fraction_evaluate=1"], "give dataset.holdout=0.2"),
        (["strategy.fraction_evaluate=1", "dataset.holdout=0.2"], "no SuperLink answers"),
        (["algorithm=split_backprop", "nodes=3", STEP], "no data at the server, which cuts"),
        (["dataset.root=phtos"], "phtos is not a folder"),
        (["dataset.classes=null"], "no image in them"),
        (["engine=local"], "is not a folder with these classes"),
    ],
)
def test_photos_may_be_on_devices_only(words, said, command, tmp_path, monkeypatch):
    (tmp_path / "data" / "digits").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    photos = ["dataset=imagefolder", "dataset.classes=[cat,dog]", "nodes=2"]
    server = ["engine=superlink", "engine.address=127.0.0.1:9"]
    code, printed, _ = command(*photos, *(words if "engine=local" in words else [*server, *words]))
    assert code == (1 if said.startswith("no SuperLink") else 2)
    assert said in printed.err
    assert printed.err.count("\n") == 1


def test_a_run_that_ends_early_saves_its_model(command):
    """All nodes crash long before the last round, and between two evaluations."""
    words = ["algorithm=esgd", "nodes=4", "rounds=400", "eval_every=400", "timeout=2"]
    code, printed, folder = command(*words, "network.crash=0.03", "engine.workers=1")
    assert code == 0
    assert "no node is left" in printed.out
    result = result_of(folder)
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert result["round"] == rows[-1]["round"] < 400
    assert result["accuracy"] > rows[0]["accuracy"] + 0.2
    assert result["best_accuracy"] == result["accuracy"]
