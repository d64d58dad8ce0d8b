"""Tests use public names only: a name that starts with an underscore may change at any time.

The check uses the names that the project's sources define. A test may use its own private names.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = [file.parent for file in ROOT.glob("*/__init__.py")]
# These functions take an attribute's name as text.
BY_NAME = {"setattr", "getattr", "delattr", "hasattr"}


def is_private(name: str) -> bool:
    return name.startswith("_") and name != "_" and not name.endswith("__")


def defined(tree: ast.AST) -> set[str]:
    """Return the private names that a source defines: in modules, classes and objects."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return set(filter(is_private, found))


def reached(tree: ast.AST) -> list[tuple[int, str]]:
    """Return (line, name) where a source uses a private name that it does not define."""
    own, found = defined(tree), []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Attribute):
            on_self = isinstance(node.value, ast.Name) and node.value.id == "self"
            names = [] if on_self and node.attr in own else [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and called(node) in BY_NAME:
            texts = [each.value for each in node.args if isinstance(each, ast.Constant)]
            names = [text.rpartition(".")[2] for text in texts if isinstance(text, str)]
        found += [(node.lineno, name) for name in names if is_private(name)]
    return sorted(found)


def called(call: ast.Call) -> str:
    """Return the last part of a called function's name."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def parsed(file: Path) -> ast.AST:
    return ast.parse(file.read_text(), str(file))


def test_no_test_uses_a_private_name_of_the_project():
    ours = {name for p in PACKAGES for file in p.rglob("*.py") for name in defined(parsed(file))}
    assert {"_trainers", "_grid", "_bracket"} <= ours  # of a module, an object, a function
    found = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in sorted((ROOT / "tests").rglob("*.py"))
        for line, name in reached(parsed(file))
        if name in ours
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("x = grid._sent", ["_sent"]),
        ("g.pool._host.answer()", ["_host"]),
        ("from strategy.collector import LEAST, _grid", ["_grid"]),
        ("patch.setattr(selection, '_bracket', 3)", ["_bracket"]),
        ("patch.setattr('compression.codec._SMALL', 3)", ["_SMALL"]),
        ("getattr(x, '_grid')", ["_grid"]),
        ("class A(Grid):\n    def f(self):\n        return self._sent", ["_sent"]),
        ("class A:\n    def __init__(self):\n        self._x = 1\n    def f(self): self._x", []),
        ("class A:\n    def __init__(self):\n        self._x = 1\nA()._x", ["_x"]),
        ("x.__dict__, x._, [_ for _ in x], print('_sent')", []),
    ],
)
def test_uses_of_private_names_are_found(source, names):
    assert [name for _, name in reached(ast.parse(source))] == names
