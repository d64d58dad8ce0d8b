"""A run of a cut model shows which node has which segment, in a table and in a picture.

A cut model is divided into segments on different nodes.
"""

import sys
from pathlib import Path
from xml.etree import ElementTree

from tests import fork_server
from tests.runs import QUICK, result_of

ROOT = Path(__file__).parents[2]
CUT = (*QUICK, "algorithm=synthetic_gradients", "batch_size=64", "strategy.cuts=[1,3]", "nodes=3")


def texts(picture):
    tree = ElementTree.parse(picture)
    return [element.text for element in tree.iter("{http://www.w3.org/2000/svg}text")]


def test_a_cut_models_run_shows_which_node_holds_which_segment(command):
    code, printed, folder = command(*CUT)
    assert code == 0
    said = texts(folder / "segments.svg")
    for layer in ("0 conv 5x5, 1 to 32", "1 dense, 128 to 256", "3 dense, 256 to 10"):
        assert layer in printed.out
        assert layer in said
    assert [text for text in said if text.startswith("node ")] == ["node 0", "node 1", "node 2"]
    result = result_of(folder)
    parameters = [f"{segment['parameters']:,} parameters" for segment in result["segments"]]
    assert [text for text in said if text.endswith("parameters")] == parameters
    assert sum(s["parameters"] for s in result["segments"]) == result["parameters"]
    (folder / "segments.svg").unlink()
    program = [sys.executable, "-m", "edgewire.pipeline.picture", str(folder)]
    assert fork_server.run(program, cwd=ROOT, check=True).stdout
    assert texts(folder / "segments.svg") == said


def test_other_runs_have_no_such_picture(command):
    code, _, folder = command(*QUICK)
    assert code == 0
    assert not (folder / "segments.svg").exists()
    for where, said in ((folder, "was not cut"), (folder / "nowhere", "no result.json")):
        program = [sys.executable, "-m", "edgewire.pipeline.picture", str(where)]
        done = fork_server.run(program, cwd=ROOT, text=True)
        assert done.returncode == 1
        assert said in done.stderr
        assert "Traceback" not in done.stderr
