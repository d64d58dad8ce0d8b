"""Packages of the user's own (`packages=`): finds, compares and imports them.

A package is a folder with an `__init__.py`, or one file `NAME.py`. It is looked up on Python's path
(PYTHONPATH and what is installed). If it is not there, it is looked up in the folder that holds the
folder of `--config-dir`, then in the working directory. The command names these two folders to the
processes that it starts in the environment variable `EDGEWIRE_PACKAGES`.

A run's configuration holds `NAME@FINGERPRINT` for each package. A machine whose source files have
another fingerprint refuses the run.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from typing import Any

from edgewire.conf.classes import nested
from edgewire.conf.schema import ConfigError
from edgewire.conf.trust import ALLOW, NodeGrants, abbreviate
from edgewire.import_names import FOLDERS as SUBPACKAGES

FOLDERS = "EDGEWIRE_PACKAGES"  # the folders in which packages are looked up after Python's path
OURS = ("edgewire",)  # the app's own package
TEST = re.compile(r".*/(test_[^/]*|[^/]*_test)\.py")
INSTALLED = {"site-packages", "dist-packages"}  # folders with packages that are not the user's own
DIGITS = 16  # hexadecimal digits of a fingerprint


def look_in(folders: Iterable[Path | str]) -> None:
    """Let this process, and the processes that it starts, look up packages in these folders too."""
    os.environ[FOLDERS] = os.pathsep.join(str(Path(folder).absolute()) for folder in folders)


def import_packages(words: Sequence[str], machine: NodeGrants | None = None) -> tuple[str, ...]:
    """Import packages, each given as `NAME` or `NAME@FINGERPRINT`; return their names.

    `machine`: what this machine grants to a submitted run; None: the run is this machine's own.
    Raises `ConfigError` for a package that the machine does not allow or does not have, for one
    with another fingerprint, and if the import fails. Only the last error comes after an import.
    """
    names = []
    for word in words:
        name, _, wanted = word.partition("@")
        _expect_name(name)
        if machine is not None and name not in OURS and not machine.allows(name):
            raise ConfigError(
                f"packages=[{abbreviate(name)}]: a run that is submitted names packages that this "
                f"machine allows, by --node-config 'allow=\"{abbreviate(name)}\"' or "
                f"{ALLOW}={abbreviate(name)}"
            )
        names.append(name)
        if wanted not in ("", fingerprint(name)):
            raise ConfigError(
                f"packages=[{name}]: this machine has another version of {name} than the command "
                f"that started the run: its .py files differ ({fingerprint(name)}, not "
                f"{abbreviate(wanted)})"
            )
    for name in names:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # importing a module can raise anything
            failed = ConfigError(f"packages=[{name}]: its import failed", error)
            raise (failed if machine is None else failed.for_others()) from error
    return tuple(names)


def _expect_name(name: str) -> None:
    if not name.isidentifier() or iskeyword(name):
        raise ConfigError(
            f"packages=[{abbreviate(name)}]: give the name with which Python imports a package or "
            "a file NAME.py: letters, digits and _, without a path"
        )
    if name not in OURS and name in {*sys.stdlib_module_names, *SUBPACKAGES}:
        raise ConfigError(f"packages=[{name}]: Python or EdgeWire has this name: rename yours")


@functools.cache  # a process keeps the version that it has imported first
def fingerprint(name: str) -> str:
    """Return 16 hexadecimal digits of the SHA-256 of a package's source files and their paths.

    Raises `ConfigError` if the package is not found or cannot be read.
    """
    found = hashlib.sha256()
    for path, file in sorted(source_files(name).items()):
        try:
            content = file.read_bytes()
        except OSError as error:
            raise ConfigError(f"packages=[{name}]: {file}: {error.strerror}") from error
        found.update(f"{path}\0{len(content)}\0".encode(errors="surrogatepass") + content)
    return found.hexdigest()[:DIGITS]


def sources_of(words: Iterable[str]) -> dict[str, Path]:
    """Return the source files of packages, as `source_files`, without the app's own packages.

    These files have to be added to the app that nodes get.
    """
    names = [word.partition("@")[0] for word in words]
    found = [source_files(name) for name in names if name not in OURS]
    return {path: file for files in found for path, file in files.items()}


def source_files(name: str) -> dict[str, Path]:
    """Return a package's .py files by their path from its parent folder, as in `mine/parts.py`.

    Hidden folders and the files of tests (`test_*.py`, `*_test.py`) are left out: Flower puts no
    tests into an app. Raises `ConfigError` if the package is not found.
    """
    spec = _spec_of(name)
    origin = Path(str(spec.origin))
    if not spec.submodule_search_locations:
        return {origin.name: origin}
    found = {}
    for folder, inner, files in os.walk(origin.parent):
        inner[:] = [each for each in inner if not each.startswith((".", "__pycache__"))]
        for file in (Path(folder, each) for each in files):
            path = f"{name}/{file.relative_to(origin.parent).as_posix()}"
            if path.endswith(".py") and not TEST.fullmatch(path):
                found[path] = file
    return found


def marked(name: str) -> str:
    """Return NAME@FINGERPRINT for files of the user's own; NAME for any other package, or none."""
    with suppress(ConfigError):  # a notebook's __main__ is in no file
        installed = INSTALLED & {*Path(str(_spec_of(name).origin)).parts}
        if not installed and name not in sys.stdlib_module_names:
            return f"{name}@{fingerprint(name)}"
    return name


def _spec_of(name: str) -> ModuleSpec:
    """Return where a package lies, without an import of it.

    If it lies in a folder of `FOLDERS` alone, the function appends this folder to `sys.path`.
    """
    spec = None
    with suppress(ValueError, ImportError):  # a module in memory may have no spec
        spec = find_spec(name)
    if spec is None or not spec.has_location:
        for folder in filter(None, os.environ.get(FOLDERS, "").split(os.pathsep)):
            there = PathFinder.find_spec(name, [folder])
            if there is not None and there.has_location:
                sys.path.append(folder)
                importlib.invalidate_caches()
                return there
            spec = spec or there
    if spec is None:
        raise ConfigError(
            f"packages=[{name}]: there is no {name} here: it is looked up on Python's path "
            "(PYTHONPATH=FOLDER), beside the folder of --config-dir, and in the working directory"
        )
    if not spec.has_location:
        raise ConfigError(f"packages=[{name}]: the folder {name} has no __init__.py")
    return spec


def qualified(group: str, node: Any, packages: Sequence[str]) -> Any:
    """Replace each `_target_` without a dot in a group's values by `PACKAGE.NAME`; return them.

    The first of `packages` that has the name is taken. Raises `ConfigError` if none has it.
    """
    for key, inner in nested(group, node):
        name = inner.get("_target_") if isinstance(inner, dict) else None
        if not isinstance(name, str) or not name.isidentifier():
            continue
        package = next((each for each in packages if name in vars(sys.modules[each])), None)
        if package is None:
            said = f"it is in none of packages=[{','.join(packages)}]; " if packages else ""
            raise ConfigError(
                f"{key}._target_={abbreviate(name)}: {said}give PACKAGE.NAME, or "
                "packages=[PACKAGE] beside it"
            )
        inner["_target_"] = f"{package}.{name}"
    return node
