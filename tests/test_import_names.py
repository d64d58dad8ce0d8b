"""`edgewire` is the only package at the top level; its modules have no second name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from edgewire.import_names import FOLDERS

ROOT = Path(__file__).parents[1]
MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for folder in FOLDERS for file in (ROOT / folder).rglob("*.py") if file.stem != "__init__"
)  # fmt: skip
# Each module in a forked process, because a failed import leaves modules behind.
BARE = """
import os, sys, flwr.server, hydra, numpy, omegaconf, torch
for name in sys.argv[1:]:
    if not os.fork():
        try:
            __import__(name)
            import edgewire
        except ImportError as error:
            os._exit(" is called edgewire." not in str(error))
        os._exit(2)
    if os.waitstatus_to_exitcode(os.wait()[1]):
        print(name)
"""


def python(code, *words, cwd=ROOT):
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=cwd, capture_output=True, text=True, timeout=100
    )
    return done.stdout, done.stderr.strip().splitlines()[-1:]


@pytest.mark.system
def test_no_module_of_the_four_folders_is_imported_twice():
    """A bare name fails, or the import of `edgewire` after it does."""
    assert len(MODULES) > 100
    assert python(BARE, *MODULES) == ("", [])


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("import edgewire, compression.buffers", "compression.buffers is called edgewire.compre"),
        ("from compression.base import PayloadError", "compression is called edgewire.compression"),
        ("import edgewire.edgewire", "No module named 'edgewire.edgewire'"),
        ("import edgewire.run", "No module named 'edgewire.run'"),
    ],
)
def test_a_second_name_is_refused_in_one_line(code, line):
    _, (said,) = python(code)
    assert line in said


def test_a_module_of_a_folder_has_its_real_file():
    """Editors and debuggers open client/app.py, not the link edgewire/client/app.py."""
    code = "import edgewire.compression.layout as m; print(m.__file__)"
    assert python(code)[0].strip() == str(ROOT / "compression" / "layout.py")


OWN = ("task", "report", "run", "client", "strategy", "compression", "conf", "simulation", "test")


@pytest.mark.parametrize("work", ["names", pytest.param("train", marks=pytest.mark.system)])
@pytest.mark.parametrize("first", ["mine", "edgewire"])
def test_a_folder_may_have_modules_of_these_names(work, first, tmp_path):
    """The user's modules win, and so does a package `compression` of the standard library's."""
    for name in OWN:
        (tmp_path / f"{name}.py").write_text("mine = True\n")
    mine = [f"import {name}; assert {name}.mine" for name in OWN]
    ours = {
        "names": "from edgewire import names; print(len(names('coder')) == 5)",
        "train": "from edgewire import train; "
        "print(train(rounds=1, nodes=2, progress=False).folder.is_dir())",
    }[work]
    lines = [*mine, ours] if first == "mine" else [ours, *mine]
    (tmp_path / "script.py").write_text("\n".join(lines))
    words = [sys.executable, "script.py"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout[-5:]) == (0, "True\n"), done.stderr
