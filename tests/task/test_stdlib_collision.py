"""The name `compression` on Python 3.14, where the standard library has it, tried on each Python.

A folder plays the standard library's.
"""

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
THEIRS = {"_common", "bz2", "gzip", "lzma", "zlib", "zstd"}  # Python 3.14's
START = """
import os, sys
sys.modules.pop("compression", None)
sys.stdlib_module_names |= {"compression"}
os.__file__ = os.path.join(LIBRARY, "os.py")
"""


@pytest.fixture
def run(tmp_path):
    """Run a script with the standard library of Python 3.14 played; `path` goes first."""
    folder = tmp_path / "library" / "compression"
    (folder / "_common").mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "_common" / "__init__.py").touch()
    (folder / "zstd.py").write_text("from compression._common import __path__\n")
    library = str(folder.parent)

    def call(script, *path, options=()):
        path = [library if each == "library" else str(each) for each in path]
        code = f"LIBRARY = {library!r}\n{START}\nsys.path[:0] = {path!r}\n{script}"
        done = subprocess.run(
            [sys.executable, *options, "-c", code], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr

    return call


def test_no_module_of_ours_hides_one_of_theirs():
    ours = {module.name for module in pkgutil.iter_modules([str(ROOT / "compression")])}
    assert "codec" in ours
    assert not ours & THEIRS
    if sys.version_info >= (3, 14):
        import compression

        there = {module.name for module in pkgutil.iter_modules(compression.__path__)}
        assert there == ours | THEIRS


def test_their_modules_are_found_in_ours_with_nothing_installed(run):
    script = """
from compression import zstd
import compression
assert zstd.__file__.startswith(LIBRARY) and not compression.__file__.startswith(LIBRARY)
assert not hasattr(compression, "lz4")
"""
    run(script, ROOT, "library", options=["-S"])


@pytest.mark.parametrize("package", ["client", "strategy", "command"])
@pytest.mark.parametrize("path", [("library", ROOT), (ROOT, "library")], ids=["last", "first"])
def test_ours_takes_the_place_of_theirs(run, package, path):
    script = f"""
first, sys.path[:2] = sys.path[:2], [LIBRARY]
import compression.zstd, compression as before
sys.path[:1] = first
import {package}
import compression
from compression import Layout
from compression.layout import Layout as same
from compression import zstd
assert compression is before and Layout is same
assert compression.zstd is zstd and zstd.__file__.startswith(LIBRARY)
assert compression.__file__ == {str(ROOT / "compression" / "__init__.py")!r}
assert compression.__path__ == [os.path.dirname(compression.__file__), LIBRARY + "/compression"]
{package}.avoid_stdlib_collision()
assert compression.Layout is Layout
"""
    run(script, *path)


def test_a_python_without_such_a_package_is_left_as_it_is(run):
    script = """
sys.stdlib_module_names -= {"compression"}
import client
assert "compression" not in sys.modules
"""
    run(script, ROOT)
