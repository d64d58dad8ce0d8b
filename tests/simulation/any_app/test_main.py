"""`python -m edgewire.simulation` runs real apps of all kinds, whatever their modules are named."""

import os
import shutil
import sys

import pytest
import torch
from flwr.app import ArrayRecord

from edgewire.compression.flower.traffic import flower_bytes
from tests.simulation.any_app.apps import (
    APPS,
    CLIENT,
    OLD_SERVER,
    ROOT,
    SERVER,
    simulate,
    simulate_here,
    start,
    summary,
    write,
)


@pytest.mark.system
def test_flowers_quickstart_is_the_same_for_any_number_of_workers(tmp_path, monkeypatch, capfd):
    """The summary counts whole models: in messages to nodes, and in replies to training."""
    nodes, words = 2, "num-server-rounds=1 fraction-evaluate=1.0"
    app = shutil.copytree(APPS / "quickstart_pytorch", tmp_path / "quickstart_pytorch")
    printed, models = [], []
    for workers in (1, 2):
        output = tmp_path / f"{workers}.pt"
        more = ["--nodes", nodes, "--workers", workers, "--network", "lte", "-c", words]
        more += ["-c", f'output="{output}"']
        printed.append(simulate_here(monkeypatch, capfd, app, *more))
        models.append(torch.load(output))
    for name, tensor in models[0].items():
        assert torch.equal(tensor, models[1][name])
    # All lines except the real seconds.
    assert printed[0].splitlines()[:-1] == printed[1].splitlines()[:-1]
    found, size = summary(printed[0]), flower_bytes(ArrayRecord(models[0]))
    assert found["sent"] == found["answered"] == 2 * nodes
    beside = found["down"] - 2 * nodes * size, found["up"] - nodes * size
    # One record in each message.
    assert all(2 * nodes * 20 < each < 2 * nodes * 100 for each in beside)
    both = found["down"] / 20e6 + found["up"] / 5e6
    link = 2 * 0.08 + 8 * both / nodes  # latencies, then the bytes
    assert found["virtual"] == pytest.approx(link, abs=0.005)


# Python 3.14 has the first one itself.
FILE = "compression" if sys.version_info < (3, 14) else "docs"
WHO = f"import client.who, {FILE}, simulation.who, strategy.who, task"


@pytest.mark.few(2)
@pytest.mark.parametrize("place", ["checkout", "app", "elsewhere", "spawned"])
def test_an_apps_modules_may_have_any_name(tmp_path, place):
    """An app's packages, folders and files may have the names of the project's modules."""
    seen = f"[m.WHO for m in (client.who, {FILE}, simulation.who, strategy.who, task)]"
    client = f"""{CLIENT}
@app.query()
def who(message, context):
    {WHO}
    print(f"node {{context.node_config['partition-id']}} {{{seen}}}\\n", end="")
    return Message(RecordDict({{"c": ConfigRecord({{"who": {seen}}})}}), reply_to=message)
"""
    server = f"""import sys
{WHO}
{SERVER}
    print("server", {seen})
    for reply in grid.send_and_receive(ask(grid, "query")):
        print("reply", reply.content["c"]["who"])
    ours = {{name.split(".")[0] for name in sys.modules}} & {{"report", "conf", "benchmarks"}}
    print("ours", sorted(ours))
"""
    files = {
        "client/__init__.py": "",
        "client/app.py": client,
        "client/who.py": "WHO = 1",
        f"{FILE}.py": "WHO = 2",
        "simulation/who.py": "WHO = 3",  # no __init__.py
        "strategy/who.py": "WHO = 4",
        "strategy/app.py": server,
        "task.py": "WHO = 5",
    }
    if place == "app":  # a folder of that name would hide the project's package from `-m`
        files["elsewhere/simulation_of_ours.py"] = ""
    if place == "spawned":
        files |= {"tensorflow.py": "", "task.py": "import tensorflow\nWHO = 5"}
    app = write(tmp_path / "toy", files, "strategy.app:app", "client.app:app")
    cwd = {"checkout": ROOT, "app": app / "client"}.get(place, tmp_path)
    environment = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        printed = simulate(app, "--nodes", "2", "--workers", "2", cwd=cwd)
    finally:
        os.environ["PYTHONPATH"] = environment
    who = [1, 2, 3, 4, 5]
    assert sorted(printed.splitlines()[:6]) == sorted(
        [f"server {who}", *[f"reply {who}"] * 2, *[f"node {n} {who}" for n in (0, 1)], "ours []"]
    )


OLD_CLIENT = """
from flwr.client import ClientApp, NumPyClient

class Client(NumPyClient):
    def __init__(self, partition):
        self.partition = partition

    def fit(self, parameters, config):
        if self.partition == 3:
            raise RuntimeError("no power")
        return [parameters[0] + self.partition], 10, {}

    def evaluate(self, parameters, config):
        return float(parameters[0].sum()), 10, {}

def client_fn(context):
    return Client(context.node_config["partition-id"]).to_client()

app = ClientApp(client_fn=client_fn)
"""


def test_apps_of_the_old_api(tmp_path):
    app = write(tmp_path / "old", {"server.py": OLD_SERVER, "client.py": OLD_CLIENT})
    process = start(app, "--nodes", "12", "--workers", "2", "--network", "lte")
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out.splitlines()[:2] == ["round 1 11 1", "round 2 11 1"]
    assert "round 2: 5727.27" in err  # 500 numbers, twice the mean of all partitions except 3
    found, size = summary(out), 500 * 8
    assert (found["sent"], found["failed"]) == (48, 2)
    # Beside the numbers, a reply has names and headers.
    assert 22 * size < found["up"] < 22 * (size + 500)
    assert found["virtual"] < 48 * 0.08  # the messages did not run one after the other


FEATURES = f"""
import time
{
    SERVER.replace(
        "@app.main()",
        '''
@app.lifespan()
def life(context):
    print("server begins", context.run_config["name"])
    yield
    print("server ends")

@app.main()''',
    )
}
    messages = ask(grid, "train") + ask(grid, "train") + ask(grid, "query.name")
    ids, replies = list(grid.push_messages(messages)), []
    while len(replies) < len(ids):  # as Flower's users write it
        done = {{r.metadata.reply_to_message_id for r in replies}}
        replies += grid.pull_messages(set(ids) - done)
        time.sleep(0.01)
    replies.sort(key=lambda reply: ids.index(reply.metadata.reply_to_message_id))
    for reply in replies:
        print(reply.metadata.src_node_id, reply.metadata.message_type, dict(reply.content["c"]))
    (lost, fine) = grid.send_and_receive(ask(grid, "evaluate.die", [1, 2]))
    print("lost", lost.has_error(), fine.has_error())
    print("answered", [not r.has_error() for r in grid.send_and_receive(ask(grid, "train"))])
"""

FEATURED_CLIENT = f"""
import os, random
{CLIENT.replace("ClientApp()", "ClientApp(mods=[lambda m, c, go: go(m, c)])")}

def marking(message, context, call_next):
    reply = call_next(message, context)
    reply.content["c"]["marked"] = True
    return reply

@app.lifespan()
def life(context):
    context.state["life"] = context.state.get("life", MetricRecord({{"n": 0}}))
    context.state["life"]["n"] += 1
    yield

@app.train(mods=[marking])
def train(message, context):
    found = {{"lives": context.state["life"]["n"], "draw": random.random()}}
    return Message(RecordDict({{"c": ConfigRecord(found)}}), reply_to=message)

@app.query("name")
def name(message, context):
    found = {{"name": context.run_config["name"], "lives": context.state["life"]["n"]}}
    return Message(RecordDict({{"c": ConfigRecord(found)}}), reply_to=message)

@app.evaluate("die")
def die(message, context):
    if context.node_config["partition-id"] == 0 and context.run_config["die"]:
        os._exit(3)
    return Message(RecordDict(), reply_to=message)
"""


def test_ttls_mods_actions_states_and_polling(tmp_path):
    files = {"server.py": FEATURES, "client.py": FEATURED_CLIENT}
    app = write(tmp_path / "toy", files, config='name = "toy"\ndie = true')
    words = ["--nodes", "3", "--network", "waits"]
    two = simulate(app, *words, "--workers", "2").splitlines()
    one = simulate(app, *words, "--workers", "1", "-c", "die=false").splitlines()
    assert one[:10] == two[:10]
    assert (one[0], one[-6]) == ("server begins toy", "server ends")
    order = [(number, node) for number in (1, 2) for node in (1, 2, 3)]
    for line, (number, node) in zip(one[1:7], order, strict=True):
        assert line.startswith(f"{node} train {{'lives': {number}, 'draw': 0.")
        assert line.endswith("'marked': True}")
    assert len({line.split("'draw': ")[1] for line in one[1:7]}) == 6
    assert one[7:10] == [f"{n} query.name {{'name': 'toy', 'lives': 3}}" for n in (1, 2, 3)]
    assert (one[10], two[10]) == ("lost False False", "lost True False")
    assert two[11] == one[11] == "answered [True, True, True]"


def test_edgewire_is_a_flower_app_too():
    printed = simulate(
        ".", "--nodes", "2", "--workers", "1", "-c", 'overrides="rounds=1 compression=f2i"'
    )
    found = summary(printed)
    assert found["sent"] == found["answered"] == 2
    assert 0 < 3 * found["up"] < found["down"]
    assert found["virtual"] > 0  # the nodes report their steps


@pytest.mark.few(1)
@pytest.mark.parametrize(("workers", "spawned"), [(1, False), (2, False), (2, True)])
def test_an_app_uses_the_library_that_it_brings(tmp_path, workers, spawned):
    """The app's `edgewire/` has the layout of a wheel; the simulator keeps its own modules."""
    client = f"""{CLIENT}
import {"tensorflow, " * spawned}edgewire.compression.layout
WHERE = [edgewire.compression.layout.__file__, edgewire.__file__]
@app.query()
def who(message, context):
    return Message(RecordDict({{"c": ConfigRecord({{"where": WHERE}})}}), reply_to=message)
"""
    server = f"""{SERVER}
    for reply in grid.send_and_receive(ask(grid, "query")):
        print(*reply.content["c"]["where"])
"""
    files = {"tensorflow.py": "", "brings_client.py": client, "brings_server.py": server}
    app = write(tmp_path / "toy", files, "brings_server:app", "brings_client:app")
    theirs = app / "edgewire"
    shutil.copytree(ROOT / "compression", theirs / "compression")
    for name in ("__init__.py", "import_names.py"):
        shutil.copy(ROOT / "edgewire" / name, theirs)
    printed = simulate(app, "--nodes", "2", "--workers", workers, cwd=tmp_path)
    line = f"{theirs / 'compression' / 'layout.py'} {theirs / '__init__.py'}"
    assert printed.splitlines()[:2] == [line, line]
