"""The screen about a run: its lines for all kinds of runs, in at most 110 columns and 25 lines."""

import json

import pytest

from edgewire.report.estimate import wilson
from edgewire.report.runs import run_of
from edgewire.report.summary import WIDTH, screen, trained
from tests.report.made_runs import SCREENS, add_run, node, write_nodes

DATA = {"train": 1438, "test": 359, "kind": "images", "classes": 10}
ABOUT = {
    "algorithm": "fedavg_f2i_both", "parameters": 9610, "data": DATA, "objective": "Classification",
    "metrics": {"accuracy": {"name": "accuracy", "higher": True, "share": True}},
}  # fmt: skip


@pytest.fixture
def shown(tmp_path, monkeypatch):
    """Return a function that makes a run and returns its screen as one text."""
    monkeypatch.chdir(tmp_path)

    def lines(*overrides, accuracies=(0.1, 0.5, 0.9), nodes=(), config=None, losses=(), **result):
        words = " ".join(("seed=0", *overrides))
        add_run(tmp_path / "run", words, accuracies, config, result=ABOUT | result)
        file = tmp_path / "run" / "history.jsonl"
        rows = [json.loads(row) for row in file.read_text().splitlines()]
        changed = [row | {"loss": loss} for row, loss in zip(rows[1:], losses, strict=False)]
        changed = [rows[0], *changed, *rows[1 + len(changed) :]]
        file.write_text("".join(json.dumps(row) + "\n" for row in changed))
        if nodes:
            write_nodes(tmp_path / "run", nodes)
        found = screen(tmp_path / "run")
        assert len(found) <= 25
        assert max(map(len, found)) <= WIDTH
        return "\n".join(found)

    return lines


def test_a_normal_run(shown):
    text = shown(
        "network=lora", link_seconds=141.3, link_seconds_float32=505.5, constant={
            "class": "3", "accuracy": 0.1}, nodes=[node(place) for place in range(10)],
    )  # fmt: skip
    assert f"{text}\n" == (SCREENS / "run.txt").read_text()


def test_a_run_with_bad_nodes(shown):
    nodes = [node(place) for place in range(10)]
    nodes[3] |= {"name": "dev-03", "failures": 6, "reason": "ValueError: sensor 4 gave no reading"}
    nodes[9] |= {"number": 10, "failures": 5, "reason": "ValueError: sensor 4 gave no reading"}
    nodes[7] |= {"mean_lag": 7.8, "samples": 466}
    nodes[1] |= {"accuracy": 0.5}
    nodes[5] |= {"sent": 5.0, "heard": 3.0, "replies": 9}
    table = [[98, 2, 0], [18, 60, 4], [0, 0, 0]]
    text = shown(
        nodes=nodes, failures=11, client_updates=69, stopped="interrupted", round=8, rounds=20,
        class_names=["standing", "sitting", 'a "b"'], confusion=table,
    )  # fmt: skip
    assert f"{text}\n" == (SCREENS / "bad_nodes.txt").read_text()


@pytest.mark.parametrize(
    ("options", "row"),
    [
        ({"accuracies": (0.1, 0.9, 0.5)}, "best 90.0 % (round 1)"),
        ({"accuracies": (0.1, *[0.9] * 4)}, "; flat since round 1"),
        ({"accuracies": (None, None)}, "not measured: no samples to test on"),
        ({"data": {"kind": "rows", "classes": 2}}, "90.00 % of what the nodes hold back"),
        ({"data": None}, "accuracy   90.00 %\n"),
        ({"uplink_bytes": 200_000, "downlink_bytes": 200_000}, "this run is not compressed"),
        ({"uplink_bytes": 400_000}, "200 % and 20 % of the bytes without compression (200 kB"),
        ({"uplink_bytes": 200_000}, "100 % and 20 % of the bytes without compression"),
        ({"diverged": True}, "the model has diverged in 2 rounds"),
        ({"staleness": 1.0}, "2 pushes in"),
        ({"virtual_seconds": 90.0}, "on the virtual network 1 min 30 s"),
        ({"uplink_bytes": 0, "downlink_bytes": 0, "client_updates": 0}, "0 B, 0 B"),
        ({"class_names": ["0", "1"], "confusion": [[3, 0], [0, 4]]}, "of each class all were"),
    ],
)
def test_other_runs(shown, options, row):
    assert row in shown(**options)


FLAT = {"constant": {"class": "3", "accuracy": 0.9}}
TABLE = {"class_names": ["a", "b"], "confusion": [[2, 3], [0, 9]]}
NO_WEIGHTS = "objective: {class_weights: null}"
LORA = "network: {up_mbps: 0.027, down_mbps: 0.027, latency_ms: 1000, seconds_per_step: 1}"


@pytest.mark.parametrize(
    ("options", "row", "is_there"),
    [
        ({**TABLE, "config": NO_WEIGHTS}, "class_weights=balanced may help", True),
        ({**TABLE, "config": "objective: {class_weights: [2, 1]}"}, "class_weights", False),
        (TABLE | {"confusion": [[2, 7], [0, 9]], "config": NO_WEIGHTS}, "class_weights", False),
        ({"constant": {"class": "3", "accuracy": 0.8}}, "no better", False),
        (FLAT, 'no better than always "3": 90.0 %; more rounds= or another', True),
        (FLAT, "next python -m edgewire.report run ", True),
        ({"client_updates": 0, "nodes": [node(0)]}, "answered", False),
        ({"client_updates": 0, "nodes": [node(0)]}, "not one update was used", True),
        ({"client_updates": 0}, "predict", False),
        ({"losses": (0.3, 0.4)}, "its loss is least in round 1 (0.3, now 0.4): fewer", True),
        ({"losses": (0.35, 0.4)}, "its loss", False),
        ({"config": "model: {file: there.safetensors}"}, "; from 10.0 % (start)", True),
        ({"config": LORA, "link_seconds": 3.0}, "over lora", True),
    ],
)  # fmt: skip
def test_advice_fits_the_run(shown, options, row, is_there):
    """`losses`: of the rounds after the first; the training loss falls."""
    assert (row in " ".join(shown(**options).split())) is is_there


def test_a_metric_without_an_interval(shown):
    """A mean error is shown as a number, beside that of the constant predictor."""
    mae = {"metrics": {"mae": {"name": "mae", "higher": False, "share": False}}}
    text = shown(
        **mae, mae=0.1935, best_mae=0.19, constant={"class": 3.2, "mae": 0.9}, objective="R"
    )
    assert 'mae        0.1935; best 0.19; always "3.2": 0.9' in text


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["algorithm=fedavg_f2i_both", "lr=0.1"], "int8 both ways (fedavg_f2i_both)"),
        (["+strategy=mine", "downlink=topk"], "fedavg_f2i_both with strategy=mine, downlink=topk"),
        (["experiment=front"], "experiment=front (FedAvg)"),
        (["algorithm=fedavg_f2i", "experiment=front"], "int8 both ways (fedavg_f2i_both)"),
    ],
)
def test_a_run_is_named_by_its_overrides(shown, overrides, name):
    assert shown(*overrides, strategy="FedAvg").splitlines()[0].endswith(f"· {name}")


def test_a_data_set_in_a_file_goes_by_its_name(tmp_path):
    add_run(tmp_path, "", config="dataset: {root: data/customers.csv}")
    result = json.loads((tmp_path / "result.json").read_text()) | {"dataset": "csv"}
    found = trained(run_of(tmp_path, result))
    assert found == "customers.csv · mlp · 10 nodes · uncompressed (fedavg)"


def test_wilson_is_the_textbooks():
    low, high = wilson(350 / 359, 359)
    assert (round(low, 4), round(high, 4)) == (0.953, 0.9868)
    assert wilson(1.0, 10)[1] == pytest.approx(1)
    assert wilson(0.0, 10)[0] == 0.0
