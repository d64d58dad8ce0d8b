"""The ledger is written before messages go, and never cut; a run stops within its budget."""

import json
import math
import shutil

import pytest
from flwr.app import Message, RecordDict

from edgewire.compression.flower.timed_grid import TimedGrid
from edgewire.conf.schema import ConfigError
from edgewire.report.card import write_card
from edgewire.report.runs import run_with_result
from edgewire.report.summary import answers
from edgewire.strategy.privacy import ledger
from edgewire.strategy.privacy.accounting import Mechanism, epsilon_of
from edgewire.strategy.privacy.ledger import FILE, BudgetSpent, Ledger, read
from edgewire.strategy.run import checkpointer
from edgewire.strategy.run.node_log import NodeLog
from edgewire.strategy.run.whole_files import NotWritten
from tests.local_runs import Stopped, at_row, local_run, raising
from tests.runs import configured, history_of, nodes_of, result_of

OWN = Mechanism(0.5, 2.0)
WORDS = ["dataset=digits", "model=mlp", "nodes=3", "rounds=4", "local_steps=2", "privacy=sample",
         "privacy.rate=0.5", "privacy.noise=2"]  # fmt: skip
STRATEGIES = {
    "flower": ["algorithm=fedavg"],
    "rounds": ["algorithm=fedavg_topk", "strategy=sparse_averaging", "strategy.update=delta"],
    "pushes": ["algorithm=fedbuff", "strategy.update=delta", "strategy.pushes=12",
               "strategy.buffer=3", "eval_every=3", "local_epochs=1"],
}  # fmt: skip


def lines_of(folder):
    return [json.loads(line) for line in (folder / FILE).read_text().splitlines()]


def steps_of(folder):
    """Return the steps of each node that the lines of a ledger count."""
    steps = {}
    for line in lines_of(folder):
        for node in line.get("nodes", ()):
            steps[node] = steps.get(node, 0) + line["steps"]
    return steps


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_line_is_on_the_disk_before_its_messages_are_sent(name, tmp_path, monkeypatch):
    push, pushed = NodeLog.push_messages, {}

    def noting(self, messages, ttl=math.inf):
        messages = list(messages)
        for message in messages:
            node = message.metadata.dst_node_id
            pushed[node] = pushed.get(node, 0) + 2
        assert steps_of(tmp_path) == pushed
        assert synced[-1] == (tmp_path / FILE).stat().st_size
        return push(self, messages, ttl)

    sync, synced = ledger.os.fsync, []

    def syncing(number):
        sync(number)
        synced.append(ledger.os.fstat(number).st_size)

    monkeypatch.setattr(ledger.os, "fsync", syncing)
    monkeypatch.setattr(NodeLog, "push_messages", noting)
    local_run(tmp_path, *WORDS, *STRATEGIES[name])
    found = result_of(tmp_path)["privacy"]
    assert found["spent"] == [[*OWN, max(pushed.values())]]
    assert found["epsilon"] <= epsilon_of({OWN: max(pushed.values())}, 1e-5)
    line = f"{found['text']} by {found['method']}, for one sample of a node"
    assert answers(run_with_result(tmp_path))["privacy"] == line
    write_card(tmp_path)
    assert f"Noise hides each training sample: {line}." in (tmp_path / "README.md").read_text()
    assert {row["train_loss"] for row in history_of(tmp_path)} == {None}
    assert {node["train_loss"] for node in nodes_of(tmp_path)["nodes"]} == {None}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_run_stops_before_it_exceeds_the_budget(name, tmp_path):
    budget = epsilon_of({OWN: 5}, 1e-5)  # two messages of two steps
    local_run(tmp_path, *WORDS, *STRATEGIES[name], f"privacy.epsilon={budget}")
    result = result_of(tmp_path)
    assert result["privacy"]["spent"] == [[*OWN, 4]]
    assert result["privacy"]["epsilon"] <= budget
    assert "epsilon by RDP would exceed privacy.epsilon=" in result["stopped"]
    assert 0 < result["round"] < result["rounds"]
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_resumed_run_counts_repeated_rounds_twice(name, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointer, "SHARE", math.inf)
    words = [*WORDS, *STRATEGIES[name], "privacy.epsilon=1000"]
    every = 3 if name == "pushes" else 1
    words += [f"checkpoint_every={every}"]
    at_row(monkeypatch, 4, raising(Stopped))
    with pytest.raises(Stopped):
        local_run(tmp_path, *words)
    before = (tmp_path / FILE).read_bytes()
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"time": 3')  # killed before it was written: nothing was sent
    local_run(tmp_path, *words, resume=True)
    assert (tmp_path / FILE).read_bytes().startswith(before)
    spent = result_of(tmp_path)["privacy"]["spent"]
    assert spent[0][2] >= max(steps_of(tmp_path).values())
    if name != "pushes":  # the third round was done twice
        assert spent == [[*OWN, 2 * 5]]


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda file: file.unlink(), "lacks lines that were there, so what was released"),
        (lambda file: file.write_bytes(file.read_bytes()[:200] + b"\n"), "is damaged, so what"),
        (lambda file: file.write_bytes(b"".join(file.read_bytes().splitlines(True)[:1])),
         "lacks lines that were there"),
        (lambda file: file.write_bytes(b"".join(file.read_bytes().splitlines(True)[::-1])),
         "is damaged, so what was released is unknown: put it back as it was"),
        (lambda file: file.write_bytes(b"[]\n" + file.read_bytes()), "is damaged"),
        (lambda file: file.write_bytes(file.read_bytes() + b"\xff\n"), "is damaged"),
    ],
)  # fmt: skip
def test_a_ledger_that_is_not_whole_is_refused_in_one_line(damage, line, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointer, "SHARE", math.inf)
    at_row(monkeypatch, 4, raising(Stopped))
    with pytest.raises(Stopped):
        local_run(tmp_path, *WORDS, *STRATEGIES["flower"])
    damage(tmp_path / FILE)
    with pytest.raises(ConfigError, match=line) as caught:
        local_run(tmp_path, *WORDS, *STRATEGIES["flower"], resume=True)
    assert "\n" not in str(caught.value)


def test_training_on_goes_on_with_the_ledger(tmp_path):
    first, words = tmp_path / "first", [*WORDS, *STRATEGIES["flower"]]
    local_run(first, *words)
    on = [*words, f"model.file={first}", "privacy.noise=3", "privacy.epsilon=1000"]
    local_run(tmp_path / "second", *on)
    assert (tmp_path / "second" / FILE).read_bytes().startswith((first / FILE).read_bytes())
    found = result_of(tmp_path / "second")["privacy"]
    assert found["spent"] == [[*OWN, 8], [0.5, 3.0, 8]]
    assert found["text"].endswith("(4 rounds, q=0.5, z=3, after 8 earlier steps)")
    with pytest.raises(
        ConfigError, match=r"earlier training has epsilon \S+ at delta 1e-05 by RDP, which d"
    ):
        local_run(tmp_path / "third", *on[:-1], "privacy.epsilon=0.5")
    (first / FILE).unlink()
    with pytest.raises(ConfigError, match="holds a run without privacy, whose model may tell"):
        local_run(tmp_path / "fourth", *on)
    shutil.copy(first / "model.safetensors", tmp_path)
    words = [*on[:-3], f"model.file={tmp_path / 'model.safetensors'}", *on[-2:]]
    local_run(tmp_path / "fifth", *words)
    assert result_of(tmp_path / "fifth")["privacy"]["spent"] == [[0.5, 3.0, 8]]


class RealTime(TimedGrid):
    """A grid in real time with some nodes, which sends nothing."""

    now = 0.0
    run = set_run = create_message = pull_messages = pull_before = None

    def __init__(self, *nodes):
        self.nodes, self.sent = nodes, 0

    def get_node_ids(self):
        return self.nodes

    def push_messages(self, messages, ttl=math.inf):
        self.sent += len(messages)
        return []


def asked(grid, *nodes):
    grid.push_messages([Message(RecordDict(), node, "train.step") for node in nodes])


def ledger_of(folder, grid, *words):
    return Ledger(grid, configured(*WORDS, *STRATEGIES["flower"], *words), str(folder))


def test_a_node_with_a_new_id_counts_from_the_node_with_the_most_steps(tmp_path):
    grid = RealTime(11, 12, 13)
    found = ledger_of(tmp_path, grid)
    found.get_node_ids()
    asked(found, 11, 12)
    asked(found, 11)
    asked(found, 13)
    assert read(tmp_path / FILE)[1] == {OWN: 4}
    grid.nodes = (12, 13, 99)
    found.get_node_ids()
    asked(found, 99)  # it may be 11
    assert read(tmp_path / FILE)[1] == {OWN: 6}
    found.push_messages([Message(RecordDict(), 99, "query.columns")])
    assert len(lines_of(tmp_path)) == 4


def test_nothing_is_sent_if_the_budget_or_the_disk_is_too_small(tmp_path, monkeypatch):
    grid = RealTime(1, 2)
    found = ledger_of(tmp_path, grid, f"privacy.epsilon={epsilon_of({OWN: 3}, 1e-5)}")
    found.get_node_ids()
    asked(found, 1)
    size = (tmp_path / FILE).stat().st_size
    with pytest.raises(BudgetSpent):
        asked(found, 2, 1)
    assert (grid.sent, (tmp_path / FILE).stat().st_size) == (1, size)
    monkeypatch.setattr(ledger.os, "fsync", raising(OSError(28, "No space left on device")))
    with pytest.raises(NotWritten, match="cannot be written, so nothing is sent: No space left"):
        asked(found, 2)
    assert grid.sent == 1


def test_a_budget_for_less_than_one_message_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match="one message by RDP, which decides: give a larger one, and"
    ):
        ledger_of(tmp_path, RealTime(1), "privacy.epsilon=1e-6")


@pytest.mark.parametrize(("folder", "words"), [("", ()), ("x", ["privacy.noise=null"])])
def test_a_run_without_a_folder_or_without_noise_is_refused(folder, words, tmp_path):
    with pytest.raises(ConfigError, match="needs its noise, and a folder for its ledger"):
        ledger_of(folder and tmp_path / folder, RealTime(1), *words)
