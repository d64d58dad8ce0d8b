"""Tries a server of one Flower release with nodes of another; prints one line of results.

    python -m tests.deploy.other_release SERVER_PYTHON NODE_PYTHON

Each argument is the Python of an environment with that release (`uv venv`, then `uv pip install
flwr==...` and the other packages of pyproject.toml). The run has two nodes and three rounds of eSGD
on digits, all on loopback.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.deploy.processes import ROOT
from tests.deploy.servers import Field

WORDS = ["engine=superlink", "algorithm=esgd", "nodes=2", "rounds=3", "eval_every=3"]


def main(server, node):
    with tempfile.TemporaryDirectory() as name, Field(Path(name)) as f:
        print(f"server {release(server)}, nodes {release(node)}: ", end="", flush=True)
        where = ["--insecure", "--host", "127.0.0.1", "--state", f"{name}/server"]
        try:
            f.serve(where, [server, "-m", "edgewire.deploy.server"])
        except RuntimeError as error:
            print(str(error).splitlines()[-1])
            return
        address = f"127.0.0.1:{f.port}"
        for index in range(2):
            f.start(
                [node, "-m", "edgewire.deploy.node", "--insecure", "--superlink", address,
                 "--state",
                 f"{name}/{index}", "--node-config", f"partition-id={index} num-partitions=2"],
                f"{index}.log",
            )  # fmt: skip
        done = subprocess.run(
            [server, "run.py", *WORDS, f"engine.address={address}", f"hydra.run.dir={name}/run"],
            cwd=ROOT, env=f.environment, capture_output=True, text=True, timeout=400,
        )  # fmt: skip
        if done.returncode:
            print(f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
            return
        result = json.loads((Path(name) / "run" / "result.json").read_text())
        bundles = "plainly" if "plain Fleet calls" in f.said("0.log") else "with bundles"
        updates, failures = result["client_updates"], result["failures"]
        print(f"{updates} updates, {failures} failures, {bundles}")


def release(python):
    code = "from importlib.metadata import version; print(version('flwr'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main(*sys.argv[1:])
