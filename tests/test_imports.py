"""Which package imports which, read from the sources; an import in a function counts too.

Methods, models and data sets register themselves and are found by name; no source imports them, so
they are not part of this check.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
CROWDED = 18  # modules in a folder
# For each package the others that it may import (CONTRIBUTING.md, "Folders").
KNOWS = {
    "compression": set(),
    "task": set(),
    "machine": {"conf"},
    "simulation": {"compression", "conf", "machine", "task"},
    "report": {"conf", "machine", "strategy", "task"},
    "conf": {"compression", "task"},
    "engines": {"machine"},
    "protocol": {"compression"},
    "deploy": {"conf", "engines", "machine", "protocol"},
    "pipeline": {"client", "compression", "conf", "report", "strategy", "task"},
    "client": {"compression", "conf", "pipeline", "task"},
    "strategy": {"compression", "conf", "protocol", "task"},
    "command": {
        "compression",
        "conf",
        "machine",
        "pipeline",
        "report",
        "strategy",
        "task",
    },
}
# Imported packages that are part of a declared one's interface: its bounds are theirs.
BROUGHT = {
    "backports-zstd": {"backports"},
    "flwr": {"click", "fastapi", "google", "ray", "starlette", "tomli", "tomli_w", "uvicorn"},
    "flwr-datasets": {"datasets"},
    "hydra-core": {"omegaconf", "yaml"},
    "ipykernel": {"IPython"},
    "torchvision": {"PIL"},
}
TOP = {"__main__", "client_app", "import_names", "server_app"}  # modules that are in no package
HOME = ROOT / "edgewire"  # its links name the folders beside it


def imports(package: Path, top: Path = ROOT) -> dict[str, set[str]]:
    """Return for each module of a package the full names of the modules that it imports."""
    modules = {dotted(file, top): file for file in package.rglob("*.py")}
    return {
        name: {found for node in ast.walk(ast.parse(file.read_text()))
               for found in named(node, name, file.name == "__init__.py", modules)}
        for name, file in modules.items()
    }  # fmt: skip


def dotted(file: Path, top: Path) -> str:
    return ".".join(file.relative_to(top).with_suffix("").parts).removesuffix(".__init__")


def named(node: ast.AST, module: str, is_package: bool, modules: dict) -> Iterator[str]:
    """Yield the modules that a statement imports; for a package, the named modules in it."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = module.split(".")[: None if is_package else -1]
        above = above[: len(above) - node.level + 1] if node.level else []
        origin = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            inner = f"{origin}.{alias.name}"
            yield inner if inner in modules else origin


def circle(graph: dict[str, set[str]]) -> list[str] | None:
    """Return a cycle of modules that import each other; the first one is repeated at the end."""
    try:
        TopologicalSorter({name: found & graph.keys() for name, found in graph.items()}).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def test_imports_have_no_cycles():
    graph = {}
    for package in KNOWS:
        graph |= imports(HOME / package)
    assert graph["edgewire.compression.quantizers.qsgd"] >= {
        "edgewire.compression.registry", "edgewire.compression.quantizers.buckets"
    }  # fmt: skip
    assert circle(graph) is None


@pytest.mark.parametrize("package", KNOWS)
def test_a_package_imports_only_what_it_may(package):
    names = {name for found in imports(HOME / package).values() for name in found}
    tops = {name.partition(".")[0] for name in names}
    if package == "compression":
        tops.remove("compression")  # Python 3.14's, for zstd
    assert not tops & {*KNOWS, "benchmarks", "docs", "launch", "papers", "run", "tests"}
    inner = {name.split(".")[1] for name in names if name.startswith("edgewire.")}
    assert inner - {package} - TOP == KNOWS[package]


def test_every_imported_package_is_declared_with_a_bound():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = list(chain(project["dependencies"], *project["optional-dependencies"].values()))
    declared = {each.name for each in map(Requirement, lines) if each.specifier}
    allowed = set.union(*(found for name, found in BROUGHT.items() if name in declared))
    names = {name for package in KNOWS for found in imports(HOME / package).values()
             for name in found}  # fmt: skip
    tops = {name.partition(".")[0] for name in names}
    tops -= {"edgewire", *KNOWS, *sys.stdlib_module_names}
    owners = packages_distributions()
    of = {top: {name.lower().replace("_", "-") for name in owners.get(top, [top])} for top in tops}
    assert {top for top in tops - allowed if not declared & of[top]} == set()


def test_every_package_has_a_rule():
    found = {file.name for file in HOME.iterdir() if file.is_dir() and file.name[0].isalpha()}
    assert found == set(KNOWS)


def test_only_one_package_is_at_the_top_level():
    """A folder without `__init__.py` hides no module of the user's, and no standard library's."""
    assert [file.parent.name for file in ROOT.glob("*/__init__.py")] == ["edgewire"]


def test_no_folder_has_too_many_modules():
    """A folder has at most 18 modules, except the folders with one method in each file."""
    methods = {"compression/quantizers", "compression/sparsifiers", "compression/coders"}
    for file in (each for package in KNOWS for each in (HOME / package).rglob("*.py")):
        folder = file.parent.relative_to(HOME)
        if str(folder) not in methods:
            assert len([*file.parent.glob("[!_]*.py")]) <= CROWDED, folder


def test_tests_use_no_private_name_by_an_import_or_as_text():
    """Ruff finds private attributes (SLF001 in pyproject.toml)."""
    private = r"^from .* import (?:\([^)]*|.*)\b_[a-z]|attr\([^)]*[\"'.]_[a-z]\w*[\"']"
    for source in ("from a import (b,\n  _c)", "from a import _c", "patch.setattr('a.b._c', 3)"):
        assert re.search(private, source, re.MULTILINE)
    for file in sorted({*(ROOT / "tests").rglob("*.py")} - {Path(__file__)}):
        assert not re.search(private, file.read_text(), re.MULTILINE), file
