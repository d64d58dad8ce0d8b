"""The library as users install it: as a wheel without torch, or as a folder within an app."""

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "compression"
EXAMPLE, *APP = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
UV = shutil.which("uv") or shutil.which("uv", path=Path(sys.executable).parent)
NOT_REACHED = re.compile(r"error sending request|dns error|Failed to fetch|operation timed out")
RUN = """
from client_app import app as client_app
from server_app import app as server_app
from flwr.app import Context, RecordDict
from plain_grid import PlainGrid
server_app(PlainGrid(client_app, 4), Context(1, 0, {}, RecordDict(), {}))
"""
ANYWHERE = """
import os, sys
import numpy as np
from app.vendor.squeeze.decoder import decode
from app.vendor.squeeze.layout import Layout
from app.vendor.squeeze.make import make_codec
from app.vendor.squeeze.registry import names
from app.vendor.squeeze.flower import payload_of
layout = Layout(("weight",), ((8, 9),), ("float32",))
update = np.linspace(-1, 1, 72, dtype=np.float32)
for sparsifier in names("sparsifier"):
    for quantizer in names("quantizer"):
        codec = make_codec(sparsifier, quantizer)
        assert len(decode(codec.encode(update, layout), layout)[0]) == 72
print(len(names("coder")))
library = os.path.dirname(os.__file__)  # from Python 3.14 on it has a package `compression`
found = [n for n in sys.modules if n.split(".")[0] in ("compression", "edgewire")]
print([n for n in found if not sys.modules[n].__file__.startswith(library)])
"""
COMMAND = """
import runpy, sys
sys.path.append(sys.argv.pop(1))
runpy.run_module("edgewire", run_name="__main__", alter_sys=True)
"""


def call(*words, cwd=None):
    """Run a program and return its output. Skips the test if packages cannot be downloaded."""
    if words[0] is None:
        pytest.skip("uv is not installed")
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=120)
    if done.returncode and (reason := NOT_REACHED.search(done.stderr)):
        pytest.skip(f"the package registry is not reached: {reason[0]}")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    call(UV, "build", "-q", "--wheel", "--out-dir", folder, FOLDER)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture
def environment(tmp_path):
    """Return an empty environment's python, and a function that installs packages into it."""
    call(UV, "venv", "-q", "--python", sys.executable, tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    return python, lambda *what: call(UV, "pip", "install", "-q", "--python", python, *what)


@pytest.mark.system
def test_the_wheel_needs_three_packages_and_zstd(wheel, environment, tmp_path):
    python, install = environment
    install(wheel)
    there = json.loads(call(UV, "pip", "list", "--python", python, "--format", "json"))
    zstd = set() if sys.version_info >= (3, 14) else {"backports-zstd"}
    assert {each["name"] for each in there} == {"edgewire", "numpy", "pcodec", "xxhash"} | zstd
    assert list(tmp_path.glob("env/lib/*/site-packages/edgewire/py.typed"))
    said = call(python, "-c", EXAMPLE, cwd=tmp_path)
    before, after, arrived = map(int, re.findall(r"\d+", said))
    assert before == 4 * 100_480
    assert arrived == pytest.approx(1005, abs=2)
    assert 200 * after < before


@pytest.mark.system
@pytest.mark.parametrize("flower", ["1.27.0", version("flwr")])
def test_its_example_runs_in_a_flower_app_without_torch(wheel, environment, tmp_path, flower):
    python, install = environment
    install(f"edgewire[flower] @ {wheel.as_uri()}", f"flwr=={flower}")
    for name, code in zip(("client_app", "server_app"), APP, strict=True):
        (tmp_path / f"{name}.py").write_text(code)
    shutil.copy(Path(__file__).parent / "flower" / "plain_grid.py", tmp_path)
    said = call(python, "-c", RUN, cwd=tmp_path)
    assert float(re.search(r"loss ([\d.]+)", said)[1]) < 1e-3
    sent = int(re.search(r"to the server: (\d+)", said)[1])
    plain = int(re.search(r"uncompressed: (\d+) bytes; left out: 0", said)[1])
    assert 2 * sent < plain


@pytest.mark.system
def test_the_applications_wheel_comes_from_its_sdist_with_all_folders(environment, tmp_path):
    """The wheel has one package, and nothing of papers/; `python -m edgewire` is its command."""
    call(UV, "build", "-q", "--out-dir", tmp_path / "dist", FOLDER.parent)  # the sdist's wheel
    (built,) = (tmp_path / "dist").glob("*.whl")
    names = zipfile.ZipFile(built).namelist()
    assert {name.partition("/")[0] for name in names} == {
        "edgewire",
        built.stem[:14] + ".dist-info",
    }
    for file in ("client/app.py", "strategy/app.py", "compression/codec.py", "conf/config.yaml"):
        assert f"edgewire/{file}" in names
    assert not [name for name in names if "papers" in name or "conf/experiment/e" in name]
    python, install = environment
    install("--no-deps", built)
    here = sysconfig.get_paths()["purelib"]  # this environment's dependencies
    said = call(python, "-c", COMMAND, here, "rounds=1", "nodes=2", cwd=tmp_path)
    assert "accuracy" in said


def test_a_copy_of_the_folder_works_under_another_name_within_an_app(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "app" / "vendor" / "squeeze")
    assert call(sys.executable, "-c", ANYWHERE, cwd=tmp_path) == "5\n[]\n"
