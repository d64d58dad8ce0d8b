"""Tests keep to what is public: a name with an underscore in front may change without a word."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = [
    *("client", "command", "compression", "conf", "report", "simulation", "strategy", "task"),
    *("benchmarks", "docs"),
]
BY_NAME = {"setattr", "getattr", "delattr", "hasattr"}  # take an attribute's name as text
# Where a test does so all the same: what it reaches for, and why.
ALLOWED: dict[str, dict[str, str]] = {}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def defined(tree: ast.AST) -> set[str]:
    """Return the private names that a source defines: of modules, classes and objects."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return {name for name in found if is_private(name)}


def used(tree: ast.AST) -> list[tuple[int, str]]:
    """Return the lines and names where a source reaches for a private name, but for its own."""
    own, found = defined(tree), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if not (
                isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr in own
            ):
                found.append((node.lineno, node.attr))
        elif isinstance(node, ast.ImportFrom):
            found += [(node.lineno, a.name) for a in node.names if is_private(a.name)]
        elif isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            texts = [a.value for a in node.args if isinstance(a, ast.Constant)]
            names = [t.rpartition(".")[2] for t in texts if isinstance(t, str)]
            if name in BY_NAME:
                found += [(node.lineno, each) for each in names if is_private(each)]
    return sorted(found)


def parsed(file: Path) -> ast.AST:
    return ast.parse(file.read_text(), str(file))


@pytest.fixture(scope="module")
def ours():
    files = [file for package in SOURCES for file in (ROOT / package).rglob("*.py")]
    return set().union(*(defined(parsed(file)) for file in files))


def test_no_test_reaches_for_a_private_name_of_ours(ours):
    found = defaultdict(list)
    for file in sorted((ROOT / "tests").rglob("*.py")):
        path = str(file.relative_to(ROOT / "tests"))
        for line, name in used(parsed(file)):
            if name in ours and name not in ALLOWED.get(path, {}):
                found[path].append(f"{line}: {name}")
    assert dict(found) == {}
