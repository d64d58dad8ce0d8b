"""Reads a Flower app from a folder: its pyproject.toml, its ServerApp and its ClientApp."""

from __future__ import annotations

import re
import sys
import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast

import click
from flwr.app import UserConfig
from flwr.clientapp import ClientApp
from flwr.common.config import flatten_dict, fuse_dicts, parse_config_args, validate_config
from flwr.serverapp import ServerApp

from edgewire.machine.errors import Ended, UsageError, one_line
from edgewire.machine.own_package import HOME, load_object, use_package_of
from edgewire.task.errors import described

T = TypeVar("T")
PAIRS = re.compile(r"\S+?=(?:'[^']*'|\"[^\"]*\"|\S+)")  # as in Flower's own parser


@dataclass(frozen=True)
class App:
    """A Flower app as its pyproject.toml describes it.

    `name`: `publisher/name`. `server_app`, `client_app`: references to the components, such as
    `package.module:app`. `run_config`: `[tool.flwr.app.config]`, flattened, with the overrides.
    """

    folder: Path
    name: str
    version: str
    server_app: str
    client_app: str
    run_config: UserConfig

    def load(self, reference: str, kind: type[T]) -> T:
        """Import the component that `reference` (`package.module:app`) names; return it.

        Raises `UsageError` if this fails, or if the object is not an instance of `kind`.
        """
        enter(self.folder)
        try:
            found = load_object(reference)
        except Ended:
            raise
        except (Exception, SystemExit) as error:
            reason = described(error)
            raise UsageError(f"cannot load {reference} of {self.folder}: {reason}") from error
        if not isinstance(found, kind):
            raise UsageError(
                f"{reference} of {self.folder} is no {kind.__name__}, but {type(found).__name__}"
            )
        return found

    def load_both(self) -> tuple[ServerApp, ClientApp]:
        """Import both components, always in this order, because modules may draw random numbers."""
        return self.load(self.server_app, ServerApp), self.load(self.client_app, ClientApp)


def enter(folder: Path) -> None:
    """Make `import` search an app's folder before all others, as Flower does, and `HOME` last.

    So the app's modules and packages win. At the top level `HOME` has only one regular package,
    `edgewire`, and Python prefers a regular package anywhere on the path to folders such as
    `client`. If the app brings a package `edgewire`, the app gets its own.
    """
    path = str(folder)
    if sys.path[:1] != [path]:
        others = [entry for entry in sys.path if entry not in {path, str(HOME)}]
        sys.path[:] = [path, *others, *[str(HOME)] * (folder != HOME)]
        use_package_of(folder)


def read_app(path: Path, overrides: list[str]) -> App:
    """Read an app's pyproject.toml; `overrides` have the form of `flwr run --run-config`.

    Raises `UsageError` with a one-line message for a folder without a Flower app, and for unknown
    keys.
    """
    folder, file = path.expanduser().resolve(), path.expanduser() / "pyproject.toml"
    if not folder.is_dir():
        raise UsageError(f"there is no folder {path}")
    if not file.is_file():
        raise UsageError(f"{path} is no Flower app: there is no pyproject.toml in it")
    try:
        config = tomllib.loads(file.read_text(encoding="utf-8"))
        _, problems, _ = validate_config(config, check_module=False)
    # Flower's checks raise AttributeError and TypeError for values of unexpected types.
    except (ValueError, AttributeError, TypeError) as error:
        problems = [str(error)]
    if problems:
        raise UsageError(f"{file}: {'; '.join(p.strip().splitlines()[0] for p in problems)}")
    app: dict[str, Any] = config["tool"]["flwr"]["app"]
    components = app["components"]
    if "serverapp" not in components or "clientapp" not in components:
        raise UsageError(f"{file}: an AgentApp runs on a SuperLink alone, not here")
    return App(
        folder,
        f"{app['publisher']}/{config['project']['name']}",
        str(config["project"]["version"]),
        components["serverapp"],
        components["clientapp"],
        _run_config(flatten_dict(app.get("config")), overrides, file),
    )


def _run_config(defaults: UserConfig, overrides: list[str], file: Path) -> UserConfig:
    """Return the values of an app's pyproject.toml with the overrides applied."""
    given = _parsed(overrides)
    for key in given.keys() - defaults.keys():
        near = get_close_matches(key, defaults, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(
            f"--run-config: there is no {key} in [tool.flwr.app.config] of {file}{hint}"
        )
    return fuse_dicts(defaults, given)


def _parsed(overrides: list[str]) -> UserConfig:
    """Return the parsed overrides. Raises `UsageError` for text that Flower's parser ignores."""
    for word in overrides:
        left = PAIRS.sub("", word).strip()
        if left and not word.endswith(".toml"):
            raise UsageError(f"--run-config: cannot read {left!r}: give KEY=VALUE KEY=VALUE")
    try:
        return cast(UserConfig, parse_config_args(overrides))
    except (OSError, ValueError, click.ClickException) as error:
        hint = "; text needs quotes: name='\"text\"'" if error.__cause__ else ""
        reason = one_line(str(error.__cause__ or error))
        raise UsageError(f"--run-config: {reason}{hint}") from error
