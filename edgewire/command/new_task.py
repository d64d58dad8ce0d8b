"""`python run.py new NAME`: writes a folder with a task of the user's own, from `template/`."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path

from edgewire.conf.load import HERE as CONF
from edgewire.conf.own_packages import TEST
from edgewire.conf.schema import ConfigError
from edgewire.import_names import FOLDERS

TEMPLATE = Path(__file__).with_name("template")
NAME, FOLDER = "my_task", "FOLDER"  # in the template: the task's name, and its folder


def new_task(words: Sequence[str]) -> str:
    """Write the folder of the task `words[0]` into the working directory; return what to run.

    Raises `ConfigError` for a name that Python cannot import or has already, for the name of one of
    our experiments, and for a folder that exists.
    """
    if {"-h", "--help"} & {*words}:
        return "usage: python run.py new NAME   (writes a folder NAME with a task of your own)"
    if len(words) != 1:
        raise ConfigError("python run.py new takes one name, as in: python run.py new my_task")
    name = words[0]
    _expect_free(name)
    folder = Path(name).absolute()
    if folder.exists():
        raise ConfigError(f"{folder} is there already: choose another name")
    for source in sorted(TEMPLATE.rglob("*.*")):
        path = source.relative_to(TEMPLATE)
        if path.suffix not in (".py", ".yaml", ".md"):
            continue
        text = source.read_text(encoding="utf-8")
        text = text.replace(FOLDER, shlex.quote(str(folder))).replace(NAME, name)
        target = folder / str(path).replace(NAME, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return f"{folder} is written; {folder / 'README.md'} says how to run it"


def _expect_free(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,99}", name):
        raise ConfigError(
            f"{name!r} is no name for a task: give a letter, then letters, digits and _"
        )
    # Flower does not send a file that is named as a test.
    taken = iskeyword(name) or name in FOLDERS or bool(TEST.fullmatch(f"/{name}.py"))
    taken |= name in sys.stdlib_module_names or (CONF / "experiment" / f"{name}.yaml").exists()
    taken = taken or ((found := find_spec(name)) is not None and found.has_location)
    if taken:
        raise ConfigError(f"{name} has a meaning in Python or EdgeWire: choose another name")
