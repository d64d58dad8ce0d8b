"""A device imports no module that it does not need."""

import json
import subprocess
import sys
import tomllib

import pytest

from edgewire.conf.load import compose_config, run_config
from tests.runs import ROOT, write_photos

HEAVY = {
    "ray", "flwr_datasets", "datasets", "sklearn", "scipy", "pandas", "pyarrow", "matplotlib",
    "seaborn", "torch._dynamo", "torch._inductor", "sympy", "triton", "networkx", "torchvision",
    "fastapi", "uvicorn", "sqlalchemy", "jinja2",
}  # fmt: skip
WORK = """
import json, sys
import edgewire.deploy.node
early = sorted(sys.modules)

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from edgewire.client.app import app
from edgewire import Layout, decode_update, make_codec
from edgewire.compression.flower import payload_of
from edgewire.compression.flower.records import payload_record
from edgewire.compression.flower.headers import DownlinkHeader, written
from edgewire.conf.load import load_config
from edgewire.conf.build import data_of, model_of
from edgewire.task.flat_model import FlatModel

TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
sizes = []
for kind, values, node in json.load(sys.stdin):
    context = Context(1, 1, node, RecordDict(), values)
    config = load_config(values, 2, node)
    flat = FlatModel(model_of(config, data_of(config, node.get("data"))), "cpu")
    vector = flat.state.detach().numpy().copy()
    layout = Layout(flat.names, flat.shapes, ("float32",) * len(flat.names))
    content = RecordDict({
        "arrays": payload_record(make_codec().encode(vector, layout)),
        "edgewire": written(DownlinkHeader(1)),
        "config": ConfigRecord({"server-round": 1, "lr": 0.01, "number": 1}),
    })
    reply = app(Message(content, 1, kind), context)
    update = decode_update(payload_of(reply.content)[1], layout).dense()
    sizes.append(float(np.abs(update).sum()))
print(json.dumps([early, sorted(sys.modules), sizes]))
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    write_photos(folder)
    return folder


JOBS = [
    ("train.step", "algorithm=esgd dataset=digits model=mlp"),
    ("train", "algorithm=fedavg_f2i dataset=imagefolder dataset.classes=[cat,dog] model=lenet5"),
    ("train.step", "algorithm=dgc dataset=imagefolder dataset.classes=[cat,dog] model=lenet5"),
]


@pytest.mark.system  # a fresh process that imports torch and trains takes 5 s
def test_a_working_node_imports_no_heavy_module(photos):
    given = []
    for kind, words in JOBS:
        values = run_config(compose_config([*words.split(), "nodes=2", "network=ideal"]))
        node = {"data": str(photos)} if "imagefolder" in words else {"partition-id": 1}
        given.append((kind, values, node))
    done = subprocess.run(
        [sys.executable, "-c", WORK],
        input=json.dumps(given), cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    early, modules, sizes = json.loads(done.stdout)
    assert len(sizes) == len(JOBS)
    assert min(sizes) > 0  # every job has trained
    assert {"torch", "edgewire.client.training", "edgewire.deploy.device.node_loop"} <= set(modules)
    assert HEAVY & set(modules) == set()
    ours = {f"edgewire.{name}" for name in ("compression", "client", "conf", "task")}
    assert not (ours | {"torch", "hydra"}) & set(early)


def test_the_device_extra_installs_all_needed_packages():
    extras = tomllib.loads((ROOT / "compression" / "pyproject.toml").read_text())["project"]
    named = " ".join(extras["optional-dependencies"]["node"] + extras["dependencies"])
    assert all(
        name in named for name in ("torch", "flwr", "httpx", "hydra-core", "pillow", "xxhash")
    )
    assert not any(name in named for name in ("ray", "simulation", "datasets", "scikit-learn"))


def test_programs_beside_the_serverapp_do_not_import_torch(tmp_path):
    """The server, doctor and keys do not import torch, which needs ten times their memory."""
    code = (
        "import sys; from edgewire.deploy import doctor, keys; "
        "from edgewire.deploy.server import server; "
        f"server.gated(server.parser().parse_args(['--state', {str(tmp_path)!r}])); "
        "assert 'flwr.superlink' in sys.modules; print('torch' in sys.modules)"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr
