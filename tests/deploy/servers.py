"""Flower's SuperLink and SuperNodes, and nodes of the project, as processes on this machine."""

import hashlib
import json
import sys
from pathlib import Path

from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, StartRunRequest
from flwr.supercore.fab import Fab

from edgewire.engines.superlink_client import Superlink
from tests import fork_server
from tests.deploy.processes import SCRIPTS, Processes, eventually, free_port

COUNTING = Path(__file__).parent / "counting"


class Field(Processes):
    """Processes that the tests' fork server starts where it can."""

    popen = staticmethod(fork_server.Popen)

    def superlink(self):
        """Start a SuperLink of Flower and wait until it listens."""
        program = [str(SCRIPTS / "flower-superlink"), "--insecure", "--host", "127.0.0.1"]
        self.serve(["--disable-runtime-dependency-installation"], program)
        self.connect()

    def connect(self, certificate=None):
        """Let this object ask the server for runs and nodes."""
        superlink = Superlink(f"127.0.0.1:{self.port}", certificate)
        self.control = superlink.control()
        self.stack.callback(self.control.close)
        self.stack.callback(superlink.close)

    def node(self, name, *words, program=("-m", "edgewire.deploy.node")):
        """Start a node of the project."""
        return self.start(
            [sys.executable, *program, "--superlink", f"127.0.0.1:{self.port}", "--insecure",
             "--state", str(self.folder / name), *words],
            f"{name}.log",
        )  # fmt: skip

    def stock_node(self, name, *words):
        """Start a SuperNode of Flower."""
        return self.start(
            [str(SCRIPTS / "flower-supernode"), "--insecure", "--superlink",
             f"127.0.0.1:{self.port}", "--port", str(free_port()), *words],
            f"{name}.log",
        )  # fmt: skip

    def online(self, count):
        """Wait until `count` nodes are online."""

        def there():
            nodes = self.control.ListNodes(ListNodesRequest()).nodes_info
            return sum(node.status == "online" for node in nodes) >= count

        eventually(there)

    def submit(self, app, **config):
        """Start a run of an app; return the run's id and the hash of the app's bundle."""
        content = build_fab_from_disk(app)
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        values = user_config_to_proto(config)
        request = StartRunRequest(fab=fab_to_proto(fab), override_config=values)
        return self.control.StartRun(request).run_id, fab.hash_str

    def counted(self, **config):
        """Run the counting app to its end; return its nodes' replies."""
        out = self.folder / "out.json"
        number, _ = self.submit(COUNTING, out=str(out), **config)

        def over():
            status = self.control.ListRuns(ListRunsRequest(run_id=number)).run_dict[number].status
            return status if status.status == "finished" else None

        status = eventually(over)
        assert status.sub_status == "completed", (status, self.said("server.log")[-3000:])
        return json.loads(out.read_text())
