"""The name `compression` is also in Python 3.14's standard library; both packages must work.

On older Pythons the tests use a folder in place of the standard library's package.
"""

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THEIRS = {"_common", "bz2", "gzip", "lzma", "zlib", "zstd"}  # in Python 3.14
START = """
import os, sys
sys.modules.pop("compression", None)
sys.stdlib_module_names |= {"compression"}
os.__file__ = os.path.join(LIBRARY, "os.py")
"""


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a script with a fake standard library of Python 3.14.

    `path` is the folder that comes first in the search path.
    """
    folder = tmp_path / "library" / "compression"
    (folder / "_common").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "_common" / "__init__.py").touch()
    (folder / "zstd.py").write_text("from edgewire.compression._common import __path__\n")
    library = str(folder.parent)

    def call(script, *path, options=()):
        path = [library if each == "library" else str(each) for each in path]
        code = f"LIBRARY = {library!r}\n{START}\nsys.path[:0] = {path!r}\n{script}"
        done = subprocess.run(
            [sys.executable, *options, "-c", code], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    return call


def test_no_project_module_hides_a_standard_one():
    ours = {module.name for module in pkgutil.iter_modules([str(ROOT / "compression")])}
    assert "codec" in ours
    assert not ours & THEIRS
    if sys.version_info >= (3, 14):
        import edgewire.compression

        there = {module.name for module in pkgutil.iter_modules(edgewire.compression.__path__)}
        assert there == ours | THEIRS


def test_standard_modules_are_found_in_the_projects_package(run):
    script = """
from edgewire.compression import zstd
import edgewire.compression
assert zstd.__file__.startswith(LIBRARY) and not edgewire.compression.__file__.startswith(LIBRARY)
assert not hasattr(compression, "lz4")
"""
    run(script, ROOT, "library", options=["-S"])


@pytest.mark.parametrize("package", ["client", "strategy", "command"])
@pytest.mark.parametrize("path", [("library", ROOT), (ROOT, "library")], ids=["last", "first"])
def test_the_projects_package_replaces_the_standard_one(run, package, path):
    script = f"""
first, sys.path[:2] = sys.path[:2], [LIBRARY]
import edgewire.compression.zstd, compression as before
sys.path[:1] = first
import {package}
import edgewire.compression
from edgewire.compression import Layout
from edgewire.compression.layout import Layout as same
from edgewire.compression import zstd
assert compression is before and Layout is same
assert edgewire.compression.zstd is zstd and zstd.__file__.startswith(LIBRARY)
assert edgewire.compression.__file__ == {str(ROOT / "compression" / "__init__.py")!r}
assert edgewire.compression.__path__ == [os.path.dirname(edgewire.compression.__file__), LIBRARY + "/compression"]
{package}.avoid_stdlib_collision()
assert edgewire.compression.Layout is Layout
"""
    run(script, *path)


def test_a_python_without_that_package_is_unchanged(run):
    script = """
sys.stdlib_module_names -= {"compression"}
import edgewire.client
assert "compression" not in sys.modules
"""
    run(script, ROOT)
