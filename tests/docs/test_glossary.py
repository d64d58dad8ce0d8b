"""The code uses each name in the glossary for one thing only, as far as a test can check this."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from edgewire.compression.flower import headers
from edgewire.pipeline import messages

ROOT = Path(__file__).parents[2]
ROOMS = ("client", "strategy", "compression", "edgewire/task", "edgewire/simulation")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()


def modules(*rooms):
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "__pycache__" not in path.parts:
                yield path, ast.parse(path.read_text())


def test_class_names_are_unique():
    places = defaultdict(list)
    for path, tree in modules(*ROOMS):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice


def keys():
    """Return the keys of configs and metrics, and the name of the header record."""
    declared = {**vars(messages), **vars(headers)}
    names = {value for name, value in declared.items() if name in METRICS}
    return names | {"proximal-mu", "server-round", headers.HEADER}


METRICS = ("LOSS", "EXAMPLES", "STEPS", "SECONDS", "DRIFT", "ERROR", "REFUSED")
PLAIN = {"loss", "seconds", "drift"}  # also columns of a result


def test_keys_of_messages_are_spelled_in_one_place():
    declared = keys() - PLAIN
    assert {"num-examples", "num-steps", "prediction-error", "edgewire"} <= declared
    for path, tree in modules("client", "strategy", "compression"):
        if path.name == "headers.py":
            continue
        spelled = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and node.value in declared
        }
        assert not spelled - {headers.HEADER}, path  # the header's name is also the logger's name


@pytest.mark.parametrize(
    ("word", "where"),
    re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", GLOSSARY, re.MULTILINE),
)
def test_names_in_the_glossary_exist_in_the_code(word, where):
    tree = ast.parse((ROOT / where).read_text())
    names = {node.name for node in ast.walk(tree) if hasattr(node, "name")}
    assert word in names
