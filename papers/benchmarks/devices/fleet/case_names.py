"""A node is replaced in a run: `python -m papers.benchmarks.devices.fleet names`.

Two nodes train. One of them is killed, its key is revoked, and another machine comes online with a
new key of the same name. The result has

* `ids`: for each text that a person reads, how many numbers of 17 digits or more it holds, decimal
  places aside;
* `nodes`: number, name and replies of each node in `nodes.json`;
* `seconds`: from the kill until the new machine is online;
* run.py's exit code, and the failures of the run.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from edgewire.report.__main__ import main as report
from edgewire.report.html.watch import WatchedReport
from tests.deploy.processes import eventually
from tests.system.fault_field import NAMES, Field, TheRun

ID = re.compile(r"(?<![\d.])\d{17,}")
WORDS = ["algorithm=fedavg_f2i", "dataset=digits", "model=mlp"]


def replace(field: Field, index: int, name: str) -> float:
    """Kill a node, and start one with an empty state and a new key of its name.

    Return the seconds from the kill until it is online.
    """
    began = time.monotonic()
    field.nodes[index].kill()
    field.nodes[index].wait()
    for each in [*field.state(index).iterdir(), *(field.keys / "nodes").glob(f"{name}.*")]:
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    for command in ("node", "revoke", "register"):
        field.call(command, name)
    before = field.told(index).count("online at")
    field.begin_node(index)
    eventually(lambda: field.told(index).count("online at") > before)
    return time.monotonic() - began


def texts(field: Field, run: TheRun) -> dict[str, str]:
    """Return the texts that a person reads of a run, by what they are."""
    with redirect_stdout(StringIO()) as screen:
        report([str(run.folder)])
    return {
        "run.py": field.said("run.log"),
        "superlink.log": (run.folder / "superlink.log").read_text(),
        "report": (run.folder / "report" / "report.html").read_text() + screen.getvalue(),
        "live": WatchedReport([run.folder]).shown()[0].decode(),
        "node": "".join(re.findall("online at .*", field.told(0))),
    }


def measured(words: list[str]) -> dict[str, Any]:
    """Return the result of the case with these options."""
    parser = argparse.ArgumentParser(prog="names", description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name, Field(Path(name), 2) as field:
        run = TheRun(field, "run", [*WORDS, f"rounds={args.rounds}"])
        eventually(run.has_begun)
        seconds = replace(field, 0, NAMES[0])
        eventually(run.has_ended, 900)
        nodes = json.loads((run.folder / "nodes.json").read_text())["nodes"]
        result = run.result()
        return {
            "exit": run.process.returncode,
            "seconds": round(seconds, 1),
            "ids": {what: len(ID.findall(text)) for what, text in texts(field, run).items()},
            "nodes": [[each[key] for key in ("number", "name", "replies")] for each in nodes],
            **{key: result[key] for key in ("client_updates", "failures", "ended")},
        }
