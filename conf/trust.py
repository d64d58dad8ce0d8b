"""What a submitted run may reach here; nodes without `--app` run the server's code anyway.

A machine trusts the configurations that its own command line has composed (`python run.py`). They
may name any class and any folder: whoever types the command can do all of that anyway. Every other
configuration comes with a run that somebody has submitted to a node or to a server, and is not
trusted. It may name only the classes of `edgewire.conf.classes` and those of packages that this
machine allows, and only folders below those that this machine has set apart. It cannot read
environment variables or files: `edgewire.conf.load` resolves no text that a reference has resolved
to. It cannot configure Hydra itself.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from edgewire.conf.classes import GROUPS, HERE, is_ours, nested, targets_in
from edgewire.conf.schema import OWN, Config, ConfigError
from edgewire.task import DEFAULT_ROOT

LOCAL_CONFIGS = "EDGEWIRE_LOCAL_CONFIGS"  # checksums of own configurations, for child processes
ALLOW, DATA, OUTPUT = "EDGEWIRE_ALLOW", "EDGEWIRE_DATA", "EDGEWIRE_OUTPUT"
REMEMBERED = 16  # the newest checksums to keep; a sweep runs thousands of configurations
SHOWN = 100  # the most characters of a submitted text that an error message repeats
# An interpolation that refers to another key, and to none of Hydra's settings.
OF_A_KEY = re.compile(r"\$\{(?!\.*hydra\b)\.*\w+(\.\w+)*\}")
PUBLIC_NAME = re.compile(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*")


@dataclass(frozen=True)
class NodeGrants:
    """What this machine grants to a submitted run.

    `allow`: packages, or classes in them, that the run may name. `data`: the folder below which it
    may read data; None: `./data`. `output`: the folder below which it may write results; None: it
    may not write any.
    """

    allow: tuple[str, ...] = ()
    data: str | None = None
    output: str | None = None

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> NodeGrants:
        """Return the grants given by environment variables and by a node's `--node-config`."""
        granted = f"{node_config.get('allow', '')} {os.environ.get(ALLOW, '')}"
        data = str(node_config.get("data", "")) or os.environ.get(DATA)
        return cls(tuple(re.findall(r"[^\s,]+", granted)), data or None, os.environ.get(OUTPUT))

    def allows(self, name: str) -> bool:
        """Return whether `allow` has the class `name`, or a package or module that holds it."""
        public = PUBLIC_NAME.fullmatch(name) is not None
        return public and any(f"{name}.".startswith(f"{each}.") for each in self.allow)


def mark_as_local(values: Mapping[str, Any]) -> None:
    """Mark a `run_config` as this machine's own, in this process and in those that it starts."""
    mark = _mark(values)
    before = [each for each in os.environ.get(LOCAL_CONFIGS, "").split() if each != mark]
    os.environ[LOCAL_CONFIGS] = " ".join([*before, mark][-REMEMBERED:])


def is_local(values: Mapping[str, Any]) -> bool:
    """Return whether a `run_config` equals, byte for byte, one that this machine has composed."""
    return _mark(values) in os.environ.get(LOCAL_CONFIGS, "").split()


def _mark(values: Mapping[str, Any]) -> str:
    text = f"{values.get('config', '')}\0{values.get('output', '')}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def abbreviate(word: str) -> str:
    """Return a submitted text for an error message: on one line, at most `SHOWN` characters."""
    return " ".join(word.split())[:SHOWN]


def expect_plain(node: Any) -> None:
    """Raise `ConfigError` if any text in `node`, at any depth, calls a resolver of OmegaConf.

    `node`: containers before OmegaConf resolves them.
    """
    for _, value in nested("", node):
        for text in map(str, value) if isinstance(value, Mapping) else [value]:
            if isinstance(text, str) and "${" in OF_A_KEY.sub("", text):
                raise ConfigError(
                    f"{abbreviate(text)}: a run that is submitted may name another key, as in "
                    "${lr}, and nothing else of this machine's"
                )


def submitted_overrides(overrides: list[str]) -> list[str]:
    """Check a submitted run's overrides; return them unchanged.

    Raises `ConfigError`, or Hydra's own errors, for an override that is neither a choice of a group
    in conf/ nor a value of a key. The function uses Hydra's own parser, so that quoting and
    escaping hide nothing. Call it before Hydra composes, because composing opens files by these
    names and calls some resolvers.
    """
    for word in OverridesParser.create().parse_overrides(overrides):
        key, why = word.get_key_element(), ""
        parts = re.split(r"[/.@:]", key.lstrip("+~"))
        if "hydra" in parts:
            why = "Hydra's own settings are this machine's"
        elif not all(re.fullmatch(r"\w+", part) for part in parts):
            why = "keys and groups are names"
        elif word.is_sweep_override():
            why = "it is one run, and no sweep"
        elif not word.is_delete():
            value = word.value()
            expect_plain(value)
            choices = value if isinstance(value, list) else [value]
            # With a path as a choice, Hydra would open any file.
            names = all(each is None or re.fullmatch(r"\w+", str(each)) for each in choices)
            if (HERE / word.key_or_group).is_dir() and not names:
                why = "a group's choice is a name"
        if why:
            line = abbreviate(str(word.input_line))
            raise ConfigError(f"{line}: {why}, for a run that is submitted")
    return overrides


def confine(config: Config, machine: NodeGrants) -> None:
    """Check a submitted configuration against what this machine grants, before any import.

    The function sets the configuration's data folder to one below the machine's data folder. It
    raises `ConfigError` for a path outside of this folder, and for classes that this machine does
    not allow.
    """
    for group in (*GROUPS, *OWN):
        node = getattr(config, group)
        for key, name in targets_in(group, node.own if group in OWN else node):
            if not is_ours(group, name) and not machine.allows(name):
                raise ConfigError(
                    f"{key}={abbreviate(name)}: a run that is submitted names classes as "
                    f"conf/{group}/*.yaml do; others are allowed on this machine itself, by "
                    f"--node-config 'allow=\"PACKAGE\"' or {ALLOW}=PACKAGE"
                )
    confine_data(config, machine)


def confine_data(config: Config, machine: NodeGrants) -> None:
    """Set a submitted configuration's data folder and model file to ones below the data folder.

    The data folder is the one that this machine has set apart. The submitting command does the
    same, so that it looks in the folder that the server will use. Raises `ConfigError` for a path
    outside of the machine's data folder.
    """
    folder, dataset, model = machine.data or DEFAULT_ROOT, config.dataset, config.model
    given = dataset.root is not None
    dataset.root = resolve_below(folder, dataset.root, "dataset.root") if given else machine.data
    if model.file is not None:
        model.file = resolve_below(folder, model.file, "model.file")


def output_of(values: Mapping[str, Any]) -> str:
    """Return the folder for the result files of the run with this `run_config`; "" for none.

    A submitted run's folder is below the folder that this machine grants. Raises `ConfigError` for
    any other folder.
    """
    output = str(values.get("output", ""))
    if not output or is_local(values):
        return output
    folder = NodeGrants.of({}).output
    if not folder:
        raise ConfigError(
            f"output={abbreviate(output)}: this machine keeps no results of submitted runs; "
            f"set {OUTPUT}=FOLDER in its server's environment, and give a folder below that one"
        )
    return resolve_below(folder, output, "output")


def resolve_below(folder: str, path: str, key: str) -> str:
    """Return the absolute form of a submitted path below a folder of this machine.

    Raises `ConfigError` for a path that leads out of the folder: absolute, with `~`, or through
    `..` or a link. The error does not name the folder.
    """
    parts = PurePath(path).parts
    try:
        top = Path(folder).expanduser().resolve()
        found = (top / path).resolve()
        inside = found.is_relative_to(top) and not path.startswith(("/", "~")) and ".." not in parts
    except (OSError, RuntimeError, ValueError):  # circular links, a name too long, a zero byte
        inside = False
    if not inside:
        raise ConfigError(
            f"{key}={abbreviate(path)}: a submitted run gives a folder below this machine's "
            "own for that, as in 'photos/2024': no .., no ~, nothing absolute, no links out of it"
        )
    return str(found)
