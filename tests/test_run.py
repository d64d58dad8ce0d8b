"""The command, as a person uses it: what it prints, what it leaves behind, how it refuses."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from conf.build import data_of, model_of
from conf.load import compose_config, to_config
from report import table
from simulation.errors import EngineError
from task.flat import FlatModel
from task.steps import evaluate, prepare

ROOT = Path(__file__).parents[1]
QUICK = ["rounds=3", "engine.workers=1"]
STRATEGIES = sorted(path.stem for path in (ROOT / "conf" / "strategy").glob("*.yaml"))


@pytest.fixture
def command(cli, tmp_path):
    """Run the command in this process; return (exit code, what it printed, its folder)."""
    count = 0

    def call(*overrides):
        nonlocal count
        count += 1
        folder = tmp_path / f"run{count}"
        words = [f"hydra.run.dir={folder}", f"hydra.sweep.dir={folder}", *overrides]
        return *cli(*sorted(words, key=lambda word: word == "-m")), folder

    return call


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


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
    assert result["uplink_ratio"] == result["uplink_bytes_float32"] / result["uplink_bytes"]
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
    images = prepare(data.test.images, data.mean, data.std)
    loss, accuracy, _ = evaluate(model.module, images, data.test.labels)
    assert accuracy == result["accuracy"]
    assert loss == pytest.approx(result["loss"])


def test_the_default_run_shows_what_the_project_is_for(command):
    """And what it takes over the line is what it takes on a network that is that line."""
    code, printed, folder = command("engine.workers=1")
    result = result_of(folder)
    assert code == 0
    assert result["accuracy"] >= 0.96
    assert result["uplink_ratio"] >= 5
    assert result["downlink_ratio"] >= 4
    assert "at 10 Mbit/s down, 2 Mbit/s up" in printed.out
    there = result_of(command("engine.workers=1", "network.down_mbps=10", "network.up_mbps=2")[2])
    assert there["virtual_seconds"] == pytest.approx(result["line_seconds"], rel=1e-9)
    assert there["line_seconds_float32"] == result["line_seconds_float32"]


@pytest.mark.parametrize("overrides", [[], ["algorithm=fedavg_f2i", "strategy.fraction_train=0.5"]])
def test_any_number_of_workers_gives_bit_identical_weights(command, overrides):
    weights, virtual = [], []
    for workers in (1, 2, 3):
        code, _, folder = command(
            "rounds=3", "network=mixed", f"engine.workers={workers}", *overrides
        )
        assert code == 0
        weights.append(load_file(folder / "model.safetensors"))
        virtual.append(result_of(folder)["virtual_seconds"])
    for other in weights[1:]:
        assert all(torch.equal(other[name], weights[0][name]) for name in weights[0])
    assert virtual[0] == virtual[1] == virtual[2] > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_learns(command, strategy):
    length = (
        ["strategy.pushes=100", "downlink=full"] if strategy == "asynchronous" else ["rounds=5"]
    )
    code, _, folder = command(*QUICK, *length, f"strategy={strategy}", "compression=f2i")
    assert code == 0
    first, *_, last = (folder / "history.jsonl").read_text().splitlines()
    assert json.loads(last)["loss"] < json.loads(first)["loss"]
    assert result_of(folder)["failures"] == 0


def test_evaluation_at_the_nodes(command):
    words = ["algorithm=fedavg", "strategy.fraction_evaluate=1", "dataset.holdout=0.2"]
    code, _, folder = command(*QUICK, *words)
    assert code == 0
    # messages of evaluation carry the model as well
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


BAD = [
    (["foo=1"], "no key foo"),
    (["roundz=1"], "did you mean rounds"),
    (["algorithm=x"], "no algorithm=x. there are: adacomp, asgd, cesgd, comp_asgd, dgc, esgd"),
    (["strategy=null"], "Config group"),
    (["algorithm=sgd", "strategy/staleness=global"], "belongs to strategy=asynchronous"),
    (["algorithm=sgd", "strategy.pushes=3"], "belongs to strategy=asynchronous"),
    (["algorithm=adacomp", "strategy.pushes=0"], "pushes must be at least 1"),
    (["algorithm=adacomp", "downlink=f2i"], "downlink=full"),
    (["algorithm=adacomp", "strategy.in_flight=2", "compression=topk"], "keep no memory"),
    (["algorithm=adacomp", "optimizer=adam"], "they take none: drop it, or"),
    (["algorithm=adacomp", "strategy.staleness.a=1"], "belongs to strategy/staleness=polynomial"),
    (["algorithm=adacomp", "strategy.record_every=7"], "multiple of strategy.record_every=7"),
    (["algorithm=fedbuff", "strategy.pushes=5"], "buffer=10 is never full with pushes=5"),
    (["algorithm=fedasync", "strategy.server_lr=2"], "a server_lr of at most 1"),
    (["network.classes={fast:{share:1}}"], "'+network.classes={NAME:"),
    (["network.classes.fast.share=1"], "'+network.classes={NAME:"),
    (["+network.classes.fast.share=1"], "'+network.classes={NAME:"),
    (["network.waiting_seconds=inf"], "waiting_seconds must be a number of at least 0, not inf"),
    (["network.waiting=long"], "network.waiting must be one of none, uniform"),
    (["network.crash=0.1"], "strategy=asynchronous"),
    (["nodes"], "nodes"),
    (["dataset.root=~/x"], "~/x"),
    (["dataset=mnist", "dataset.root='~/nowhere'"], f"{Path.home()}/nowhere"),
    (["hydra.run.dir=/dev/null/x"], "/dev/null"),
    (["seed=99999999999999999999"], "seed must be below"),
    (["strategy=krum", "strategy.num_malicious_nodes=-2"], "num_malicious_nodes"),
    (["strategy=multikrum", "strategy.num_nodes_to_select=0"], "num_nodes_to_select"),
    (["nodes=-1"], "nodes must be a number of at least 1, not -1"),
    (["nodes=1.5"], "nodes"),
    (["rounds=0"], "rounds must be a number of at least 1"),
    (["nodes=100000"], "more than the 143"),
    (["compression.quantizer=int9"], "int9"),
    (["compression=f2i", "compression.level=99"], "level"),
    (["engine.workers=-1"], "engine.workers"),
    (["engine.workers=x"], "engine.workers must be int"),
    (["model=lenet5"], "dataset.size"),
    (["dataset=mnist", "dataset.root=/nowhere"], "/nowhere"),
    (["device=cuda:77"], "device=cuda:77"),
    (["device=toaster"], "device=toaster"),
    (["optimizer.momentum=-1"], "momentum"),
    (["schedule=step", "schedule.step_size=0"], "schedule.step_size must not be 0"),
    (["strategy=fedtrimmedavg", "strategy.beta=2"], "beta"),
    (["partition=dirichlet", "partition.alpha=-1"], "lpha"),
    (["partition=dirichlet", "partition.alpha=0.01", "nodes=300"], "larger partition.alpha"),
    (["strategy=bulyan", "strategy.num_malicious_nodes=5"], "needs 23 nodes a round"),
    (["strategy=krum", "strategy.num_malicious_nodes=4"], "needs 11 nodes a round"),
    (["engine=ray", "engine.gpus_per_client=-1"], "engine.gpus_per_client"),
    (["engine=ray", "engine.gpus_per_client=64"], "engine.gpus_per_client=64"),
    (["device=meta"], "device=meta"),
    (["dataset.classes=[a,b]"], "dataset.classes"),
    (["nodes=abc"], "'abc' of type 'str' could not be converted to Integer"),
    (["strategy=fedadam", "strategy.eta=nan"], "strategy.eta must be a finite number"),
    (["strategy.fraction_train=0"], "strategy.fraction_train"),
    (["strategy=fedprox", "strategy.proximal_mu=-1"], "strategy.proximal_mu"),
    (["partition=pathological", "partition.num_classes_per_partition=99"], "num_classes"),
]


@pytest.mark.parametrize(("overrides", "part"), BAD, ids=[" ".join(o) for o, _ in BAD])
def test_a_mistake_ends_in_one_line_and_exit_code_2(command, overrides, part):
    code, printed, folder = command(*overrides)
    assert code == 2
    lines = printed.err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert part in lines[0]
    assert not (folder / "result.json").exists()


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(0, 255, (9, 7, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def test_a_folder_of_photos_trains(command, photos):
    args = ["dataset=imagefolder", f"dataset.root={photos}", "dataset.size=8", "nodes=3"]
    assert command(*QUICK, *args)[0] == 0


def test_an_empty_or_broken_folder_is_named(command, photos, tmp_path):
    (tmp_path / "empty").mkdir()
    code, printed, _ = command("dataset=imagefolder", f"dataset.root={tmp_path / 'empty'}")
    assert code == 2
    assert "empty" in printed.err
    assert len(printed.err.strip().splitlines()) == 1
    (photos / "cat" / "3.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    code, printed, _ = command("dataset=imagefolder", f"dataset.root={photos}")
    assert code == 2
    assert "3.png" in printed.err
    assert len(printed.err.strip().splitlines()) == 1


def test_updates_that_are_not_finite_are_left_out_counted_and_named(command):
    code, printed, folder = command("rounds=1", "engine.workers=1", "lr=1e30")
    assert code == 1
    assert result_of(folder)["failures"] == 10
    assert result_of(folder)["client_updates"] == 0
    assert "left out" in printed.out
    assert printed.err.startswith("warning: the run has diverged; try a lower lr=")
    assert result_of(folder)["stopped"].startswith("round 1: not one of 10 replies could be used")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of Flower's FedAdam
def test_a_server_whose_model_diverges_says_so_in_one_line(command):
    code, printed, _ = command(*QUICK, "strategy=fedadam", "strategy.eta=1e39")
    assert code == 1
    assert len(printed.err.strip().splitlines()) == 1
    assert "diverged" in printed.err


@pytest.mark.parametrize(
    "words",
    [["lr=1e4"], ["lr=30", "algorithm=fedavg_f2i"], ["algorithm=sgd", "rounds=20", "lr=1e5"]],
    ids=["no number", "finite, but huge", "steps"],
)
def test_a_run_that_has_diverged_says_what_to_try(command, words):
    code, printed, folder = command(*QUICK, *words)
    assert code == 1
    (line,) = printed.err.strip().splitlines()
    assert line.startswith("warning: the run has diverged; try a lower lr= (it is ")
    assert result_of(folder)["diverged"] is True


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of Flower's FedAdam
def test_a_server_that_cannot_go_on_with_its_model_leaves_a_result(command):
    code, _, folder = command(*QUICK, "strategy=fedadam", "strategy.eta=1e39")
    assert code == 1
    assert result_of(folder)["diverged"] is True


def test_a_sweep_goes_on_after_a_job_has_diverged_and_lists_it(command, capsys):
    code, printed, folder = command("-m", *QUICK, "lr=10000,0.1")
    assert code == 1
    assert "1 of 2 jobs failed or diverged" in printed.err
    assert "  0: rounds=3 engine.workers=1 lr=10000: the run has diverged; try " in printed.err
    assert [result_of(folder / str(job))["diverged"] for job in (0, 1)] == [True, False]
    table.main([str(folder)])
    assert f"\ndiverged: {folder / '0'}\n" in capsys.readouterr().out


def test_a_run_that_fails_leaves_no_result_of_an_earlier_one(command, monkeypatch, tmp_path):
    """Or it would be read, and the new run be said to have diverged."""
    again = f"hydra.run.dir={tmp_path / 'again'}"
    assert command(*QUICK, "lr=1e4", again)[0] == 1

    def fail(*arguments, **options):
        raise EngineError("no power")

    monkeypatch.setattr("simulation.local.make_pool", fail)
    code, printed, _ = command(*QUICK, again)
    assert (code, printed.err) == (1, "error: no power\n")


def test_what_failed_before_is_forgotten(command, tmp_path):
    for nodes, expected in (("0,2", 2), ("2", 0)):
        again = f"hydra.sweep.dir={tmp_path / 'again'}"
        code, printed, _ = command("-m", *QUICK, f"nodes={nodes}", again)
        assert code == expected
        assert ("1 of 2 jobs failed" in printed.err) == bool(expected)


def test_a_sweep_leaves_a_folder_a_job(command):
    code, _, folder = command("-m", *QUICK, "algorithm=fedavg,fedavg_f2i", "seed=0,1")
    assert code == 0
    results = [result_of(folder / str(job)) for job in range(4)]
    assert [(r["algorithm"], r["seed"]) for r in results] == [
        ("fedavg", 0), ("fedavg", 1), ("fedavg_f2i", 0), ("fedavg_f2i", 1)
    ]  # fmt: skip
    assert results[0]["accuracy"] != results[1]["accuracy"]


def test_a_job_that_fails_does_not_end_the_sweep(command):
    code, printed, folder = command("-m", *QUICK, "nodes=0,2")
    assert code == 2
    assert printed.err.count("nodes must be a number of at least 1, not 0") == 2
    assert "1 of 2 jobs failed" in printed.err
    assert result_of(folder / "1")["client_updates"] == 6


def test_help_explains_every_group(capsys):
    done = subprocess.run(
        [sys.executable, "run.py", "--help"], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0
    groups = [p.name for p in (ROOT / "conf").iterdir() if p.is_dir() and p.name[0] != "_"]
    for group in set(groups) - {"hydra"}:
        assert any(line.split()[:1] == [group] for line in done.stdout.splitlines()), group


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_leaves_nothing_behind(number, tmp_path):
    command = [sys.executable, "run.py", "rounds=100000", "engine.workers=2"]
    folder = tmp_path / "run"
    started = subprocess.Popen(
        [*command, f"hydra.run.dir={folder}"], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 240  # a busy machine takes long to import torch
    while time.monotonic() < deadline and not (
        (folder / "history.jsonl").exists()
        and len((folder / "history.jsonl").read_text().splitlines()) > 2
    ):
        time.sleep(0.1)
    children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
    shared = list(Path("/dev/shm").glob(f"edgewire-{started.pid}-*"))
    started.send_signal(number)
    try:
        _, printed = started.communicate(timeout=60)
    finally:
        started.kill()
    assert started.returncode in (130, 143)
    assert "Traceback" not in printed
    assert len(children) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in children)
    assert len(shared) == 1
    assert not shared[0].exists()


def test_a_run_that_ends_early_keeps_what_it_has_learned(command):
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
