"""One name, one thing: the code is held against the glossary where that is easy."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from compression.flower import headers

ROOT = Path(__file__).parents[2]
ROOMS = ("client", "strategy", "compression", "task", "simulation")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()


def modules(*rooms):
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "__pycache__" not in path.parts and "alias" not in path.parts:
                yield path, ast.parse(path.read_text())


def test_no_class_has_anothers_name():
    places = defaultdict(list)
    for path, tree in modules(*ROOMS):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert not twice


def keys():
    """Return the keys of orders and metrics, and the note's name."""
    names = {value for name, value in vars(headers).items() if name in METRICS}
    return names | {"proximal-mu", "server-round", headers.NOTE}


METRICS = ("LOSS", "EXAMPLES", "STEPS", "SECONDS", "DRIFT", "ERROR", "REFUSED")
PLAIN = {"loss", "seconds", "drift"}  # words that are other things too: columns of a result


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
        assert not spelled - {headers.NOTE}, path  # also the loggers' name


@pytest.mark.parametrize(
    ("word", "where"),
    re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", GLOSSARY, re.MULTILINE),
)
def test_words_stand_for_what_is_there(word, where):
    """The glossary's last table: a name of the code, and the module that has it."""
    tree = ast.parse((ROOT / where).read_text())
    names = {node.name for node in ast.walk(tree) if hasattr(node, "name")}
    assert word in names


def test_the_tables_are_there():
    assert len(re.findall(r"^\| `", GLOSSARY, re.MULTILINE)) > 10


NOUN = re.compile(
    r"\b(an|the|its|no|last|next|lost|late|each|every|applied) answers?\b", re.IGNORECASE
)


def test_what_a_node_sends_back_is_called_a_reply():
    for path, _ in modules(*ROOMS):
        assert not NOUN.search(path.read_text()), path
