"""The photo example of docs/deploy.md runs, with other addresses, folders and numbers of rounds."""

import re
import shlex
import sys

import pytest
from flwr.common.config import parse_config_args

from edgewire.deploy import keys
from edgewire.deploy.node import node_config_of
from tests.deploy.processes import ROOT
from tests.deploy.servers import Field
from tests.runs import result_of, write_photos

PAGE = (ROOT / "docs" / "deploy.md").read_text()


def commands(heading):
    """Return the commands of a section of the page, each as a list of arguments."""
    section = re.search(rf"^## {heading}\n(.*?)^## ", PAGE, re.DOTALL | re.MULTILINE)[1]
    blocks = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith("python")]


def test_flowers_supernode_and_a_node_take_the_pages_options():
    text = "\n".join(page.read_text() for page in ROOT.glob("docs/*.md"))
    found = re.findall(r"--node-config '([^']+)'", text)
    assert any("secure=" in words for words in found)
    for words in (each.removesuffix(" ...") for each in found):
        assert node_config_of(words) == parse_config_args([words]), words


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return the working folder of all programs, with photos for one node, none for the server."""
    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path / "kitchen")
    return tmp_path


@pytest.mark.system
def test_photos_on_devices_train_a_model(place, command):
    make_server, make_nodes, serve, register = commands("The server")
    node, run = commands("Photos")
    with Field(place) as f:
        assert keys.main(make_server[3:]) == keys.main(make_nodes[3:]) == 0
        f.serve([], [sys.executable, *serve[1:]], cwd=place)
        assert keys.main(["--superlink", f"localhost:{f.port}", *register[3:]]) == 0
        here = {
            "python": sys.executable,
            "my.server.org:8000": f"localhost:{f.port}",
            "state": "state-kitchen",
            "ca.crt": "keys/ca.crt",
            "kitchen.key": "keys/nodes/kitchen.key",
            'data="/srv/photos"': f'data="{place / "kitchen"}"',
        }
        assert set(here) <= set(node)
        f.start([here.get(word, word) for word in node], "kitchen.log", cwd=place)
        assert run[:2] == ["python", "run.py"]
        words = [word.replace(":8000", f":{f.port}") for word in run[2:]]
        code, printed, folder = command(*words, "nodes=1", "rounds=2", "local_epochs=5")
        assert code == 0, (printed, f.said("server.log"), f.said("kitchen.log"))
    result = result_of(folder)
    said = " ".join(printed.out.split())
    assert said.count("no data at the server to test on: accuracy is of what the nodes hold") == 1
    assert result["accuracy"] == result["node_accuracy"] == 1.0
    assert (result["failures"], result["client_updates"]) == (0, 2)
