"""A node with a hostile server runs no command and reveals no secret."""

import pytest
from flwr.app import Context, Message, MetricRecord, RecordDict

from edgewire.client.app import LocalError, app
from edgewire.compression.base import PayloadError
from edgewire.compression.flower.headers import HEADER
from edgewire.conf.load import run_config
from edgewire.conf.schema import ConfigError
from edgewire.machine.job import Job
from edgewire.simulation.local import run_local
from tests.conf.hostile import HIDDEN, OPEN, RUN, SECRET, plain, put, submitted
from tests.runs import composed, model_bytes, result_of, write_photos

ACTIONS = ["train", "train.step", "train.segment", "evaluate"]
SMALL = "rounds=1", "nodes=2", "engine.workers=1", "local_steps=1"


@pytest.fixture
def ask(identity):
    """Return a function that sends a node one message, with a configuration from the server."""

    def call(values, node_config=None, action="train", **records):
        node_config = node_config or {"partition-id": 0, "num-partitions": 2}
        message = Message(RecordDict(records), 1, action)
        message.metadata.__dict__["_message_id"] = "1"
        return app(message, Context(1, 1, node_config, RecordDict(), values))

    return call


@pytest.mark.few(5)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    ("group", "harm"),
    [("strategy", RUN), ("optimizer", OPEN), ("schedule", RUN), ("partition", OPEN)],
)
def test_no_message_runs_a_command(ask, tmp_path, action, harm, group):
    bait = tmp_path / "bait"
    with pytest.raises(ConfigError, match="allow="):
        ask(submitted({**plain(), group: put(harm, bait)}), action=action)
    with pytest.raises(ConfigError):
        ask({"overrides": f"{group}._target_={harm['_target_']} nodes=2"}, action=action)
    assert not bait.exists()


@pytest.mark.parametrize("text", ["${oc.env:SECRET}", "a${oc.env:SECRET}", "\\${oc.env:SECRET}"])
def test_an_error_reveals_no_environment_variable(ask, monkeypatch, text):
    monkeypatch.setenv(SECRET, HIDDEN)
    device = put(text, "")
    for values in (submitted({**plain(), "device": device}), {"overrides": f"device='{device}'"}):
        with pytest.raises(ConfigError) as caught:
            ask(values)
        assert HIDDEN not in str(caught.value)


@pytest.fixture
def photos(tmp_path):
    """Return a node's own folder of photos; the names in it are private."""
    write_photos(tmp_path / "private")
    return tmp_path / "private"


def images(**options):
    config = plain("dataset=imagefolder", "dataset.size=8", "nodes=1")
    config["dataset"] |= options
    return submitted(config)


@pytest.mark.parametrize(
    ("change", "classes"),
    [
        (lambda folder: None, ["x", "y"]),
        (lambda folder: (folder / "cat" / "0.png").write_bytes(b"broken"), ["cat", "dog"]),
        (lambda folder: (folder / "cat").rename(folder / "third"), ["cat", "dog"]),
        (lambda folder: folder.rename(folder.parent / "gone"), ["cat", "dog"]),
    ],
)
def test_an_error_reveals_nothing_of_a_nodes_folder(ask, photos, change, classes):
    change(photos)
    with pytest.raises(LocalError) as caught:
        ask(images(classes=classes), {"data": str(photos)})
    told = str(caught.value)
    assert told == "TaskError; this node's own log says more"
    assert str(photos) in str(caught.value.__cause__)  # the node's log has the full error


def test_a_node_reads_below_its_own_folder_only(ask, photos, monkeypatch):
    monkeypatch.setenv("EDGEWIRE_DATA", str(photos / "cat"))
    for root in (str(photos), "..", "../dog", "~", "/"):
        with pytest.raises(ConfigError, match=r"^dataset\.root=") as caught:
            ask(images(root=root))
        assert str(photos.parent) not in str(caught.value).replace(root, "")
    (photos / "cat" / "out").symlink_to(photos / "dog")
    with pytest.raises(ConfigError, match=r"^dataset\.root="):
        ask(images(root="out"))


def test_an_error_may_name_what_the_server_sent(ask):
    with pytest.raises(ConfigError, match="device=toaster cannot be used here"):
        ask(submitted({**plain(), "device": "toaster"}))
    with pytest.raises(PayloadError, match="must be a ConfigRecord"):
        ask(submitted(plain("nodes=2")), **{HEADER: MetricRecord({"x": 1})})
    with pytest.raises(LocalError, match=r"^TaskError; "):
        ask(submitted({**plain(), "model": {"name": "x"}}))


def test_what_a_nodes_own_code_raises_stays_on_the_node(ask, tmp_path, monkeypatch, caplog):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mytask.py").write_text("def net():\n    raise OSError('/home/me')\n")
    config = submitted(
        {**plain("nodes=2"), "model": {**plain()["model"], "_target_": "mytask.net"}}
    )
    node = {"partition-id": 0, "num-partitions": 2, "allow": "mytask"}
    with pytest.raises(ConfigError, match="OSError; this machine's own log says more") as caught:
        ask(config, node)
    assert "/home/me" not in str(caught.value)
    assert "/home/me" in caplog.text


def test_a_local_run_gets_the_full_error(ask, photos):
    own = run_config(composed("dataset=imagefolder", f"dataset.root={photos / 'none'}"))
    with pytest.raises(ValueError, match="none is not a folder"):
        ask(own)


def run(values, folder):
    run_local(Job(folder, values, 2, folder), workers=1)


def test_an_honest_submitted_run_trains_as_usual(tmp_path, monkeypatch):
    monkeypatch.setenv("EDGEWIRE_OUTPUT", str(tmp_path))
    run(run_config(composed(*SMALL), str(tmp_path / "own")), tmp_path)
    run(submitted(plain(*SMALL), "sent"), tmp_path)
    run({"config": "", "overrides": "rounds=1 local_steps=1", "output": "words"}, tmp_path)
    assert len({model_bytes(tmp_path / name) for name in ("own", "sent", "words")}) == 1
    assert result_of(tmp_path / "sent")["failures"] == 0


def test_a_submitted_run_writes_below_the_servers_folder_or_not_at_all(tmp_path, monkeypatch):
    for output in (str(tmp_path / "x"), "x"):
        with pytest.raises(ConfigError, match="EDGEWIRE_OUTPUT"):
            run(submitted(plain(*SMALL), output), tmp_path)
    (tmp_path / "results").mkdir()
    monkeypatch.setenv("EDGEWIRE_OUTPUT", str(tmp_path / "results"))
    with pytest.raises(ConfigError, match=r"^output="):
        run(submitted(plain(*SMALL), "../x"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


MINE = """
from flwr.serverapp.strategy import FedAvg

class Mine(FedAvg):
    def __init__(self, **options):
        super().__init__(**options)
"""


def test_a_package_that_this_machine_allows_runs_on_it(tmp_path, monkeypatch):
    (tmp_path / "minepackage.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("EDGEWIRE_OUTPUT", str(tmp_path))
    config = plain(*SMALL)
    config["strategy"]["_target_"] = "minepackage.Mine"
    with pytest.raises(ConfigError, match="allow="):
        run(submitted(config, "run"), tmp_path)
    monkeypatch.setenv("EDGEWIRE_ALLOW", "minepackage")
    run(submitted(config, "run"), tmp_path)
    assert result_of(tmp_path / "run")["strategy"] == "Mine"
