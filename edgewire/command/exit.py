"""Reports an error to the user: one line, and an exit code.

The exit code is 2 for the user's own mistake, and 1 for a run that has failed or diverged. For a
stopped run it is 128 plus the signal's number (130: Ctrl-C, 143: SIGTERM).
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import cast

from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from edgewire.command.caller import caller
from edgewire.compression.base import PayloadError
from edgewire.conf.classes import GROUPS
from edgewire.conf.load import HERE as CONF
from edgewire.conf.load import compose_config
from edgewire.conf.schema import ConfigError
from edgewire.machine.errors import Ended, EngineError, UsageError
from edgewire.report.loggers import LoggerError
from edgewire.report.progress import VIEW
from edgewire.task.errors import TaskError

MISTAKES = ConfigError, TaskError, UsageError, LoggerError  # of the user's
STOPPED = 130  # exit code after Ctrl-C


class Diverged(Exception):
    """The run has diverged, so its model is useless. The message says what to try."""


class Failed(SystemExit):
    """A run failed, and its error was printed, unless Python code has called.

    `code`: the exit code; `line`: the printed line. `diverged`: whether the run has ended, and its
    model has diverged.
    """

    def __init__(self, code: int, line: str, *, diverged: bool = False) -> None:
        super().__init__(code)
        self.line, self.diverged = line, diverged


class Stopped(SystemExit):
    """A run was stopped by Ctrl-C or a signal. `code`: the exit code; `line`: the printed line."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(code)
        self.line = line


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turn an error of the code in this context into one printed line, and raise `Failed`.

    The exit code of `Failed` is 2 for a user's mistake, else 1. If the run is stopped, this context
    prints one line with the notes of the exception, and raises `Stopped`. If Python code has
    called, nothing is printed.
    """
    code, kind, failed = 0, "error", Exception()
    try:
        yield
    except Diverged as error:
        code, kind, failed = 1, "warning", error
    except (HydraException, OmegaConfBaseException, *MISTAKES) as error:
        code, failed = 2, error
    except (EngineError, PayloadError) as error:  # PayloadError: the server's own model diverged
        code, failed = 1, error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code, failed = 2, ConfigError(f"{where}{error.strerror or error}")
    except MemoryError as error:
        code, failed = 1, EngineError(f"there is not enough memory: {error or 'for this run'}")
    except (ValueError, TypeError, AttributeError, AssertionError) as error:
        # errors for which Hydra has no class
        parts = Path(traceback.extract_tb(error.__traceback__)[-1].filename).parts
        if not {"hydra", "omegaconf"} & set(parts):
            raise
        hint = "" if isinstance(error, ValueError) else "; a group takes a name, as model=mlp"
        code, failed = 2, ConfigError(key_of_a_value(sys.argv[1:]) or f"{error}{hint}")
    except (KeyboardInterrupt, Ended) as error:
        notes = getattr(error, "__notes__", ["no run was under way"])
        line = ": ".join(["stopped", *notes])
        _print(line)
        ended = cast(int, error.code) if isinstance(error, Ended) else STOPPED
        raise Stopped(ended, line) from error
    if code:
        if os.environ["EDGEWIRE_FULL_ERROR"]:
            raise failed
        line = one_line(failed)
        _print(f"{kind}: {line}")
        raise Failed(code, line, diverged=isinstance(failed, Diverged))


def _print(line: str) -> None:
    if not caller().python and VIEW not in os.environ:
        print(line, file=sys.stderr)


def one_line(error: BaseException) -> str:
    """Return an error's message as one line; if Hydra lists choices, they are joined by commas."""
    text = str(error)
    cause = str(error.__cause__)
    if isinstance(error, OverrideParseException):
        return f"cannot read {error.override!r}: quote values with special characters, no ~"
    if unknown := re.search(r"Could not override '([^']+)'", text):
        return unknown_key(unknown[1], cause)
    merged = re.match(r"Error merging override \+*([^=]+)=", text)
    if merged and (said := wrong_kind(merged[1], cause)):
        return said
    if place := re.search(r"In '([^/']+)/.*composing config:\s+Key '([^']+)' not in", text):
        return f"there is no place {place[2]} for {place[1]}@{place[2]}=: give {place[1]}=NAME"
    if text.startswith("Error merging override") and error.__cause__ is not None:
        text = f"{text.removeprefix('Error merging override ')}: {error.__cause__}"
    text = re.sub(r"\n+Config search path:.*", "", text, flags=re.DOTALL)
    text = re.sub(r"\n\s*(full_key|object_type|reference_type)[:=].*", "", text)
    text = re.sub(r"^In '[^']*': Could not find '(.+)/(.+)'", r"there is no \1=\2", text)
    text = re.sub(r"Available options in '[^']*':\n\t", "there are: ", text)
    text = re.sub(r"\n\t", ", ", text)
    lines = [line.strip().rstrip(".") for line in text.splitlines() if line.strip()]
    return ". ".join(lines)


def wrong_kind(key: str, reason: str) -> str:
    """Return an error message if a list, a mapping or a single value is given for another of these.

    `key`: the key of the value; `reason`: Hydra's text. Returns "" if the error is another one.
    """
    known = key in known_keys()
    owner, _, name = key.rpartition(".")
    if "'{}'" in reason and owner and not known:  # Hydra has made a mapping for the key
        return f"there is no key {owner}.{name}: {owner} is one value"
    lists = "List[" in reason or "is not a ListConfig" in reason
    if lists and known:
        return f"{key} must be a list: {key}=[NAME,NAME]"
    if "is not a subclass of" in reason and not known:
        return new_name(key)
    if "is not a subclass of" in reason or "merge DictConfig with ListConfig" in reason:
        return f"{key} is a group of keys, not one value: {key}.KEY=VALUE"
    return ""


def key_of_a_value(argv: list[str]) -> str:
    """Return the error message for an override such as `nodes.x=1`: `nodes` is a plain value.

    `argv`: the command line. Returns "" if it has no such override.
    """
    known = known_keys()
    for word in argv:
        key, equals, _ = word.lstrip("+").partition("=")
        owner = key.rpartition(".")[0]
        inside = any(each.startswith(f"{owner}.") for each in known)
        if equals and owner in known and not inside:
            return f"there is no key {key}: {owner} is one value, or a list"
    return ""


def unknown_key(key: str, reason: str) -> str:
    """Return the error message for a key that Hydra has refused. `reason`: Hydra's text."""
    if re.search(r"reference_type=Dict\[str, (?!Any)", reason):
        return new_name(key)
    inside = re.search(r"full_key: (\S+)", reason)
    if inside and inside[1].startswith(f"{key}."):  # the override's value is a mapping
        key = inside[1]
    known = known_keys()
    groups = {path.name for path in CONF.iterdir() if path.is_dir()}
    if key in known:
        return f"{key} does not go with the other choices made: it belongs to another of its group"
    parts = key.replace("/", ".").split(".")
    if owners := _owners(parts[0], ".".join(parts[1:])) or _owners("/".join(parts[:-1]), parts[-1]):
        return f"{key} does not go with the other choices made: it belongs to {owners}"
    near = _nearest(key, {k for k in known if "._" not in k}, groups)
    hint = f"did you mean {near}?" if near else "python run.py --help lists all keys"
    if not near and parts[0] in GROUPS:
        hint = f"an option of a class of your own needs a plus sign: +{key}="
    return f"there is no key {key}; {hint}"


def _nearest(key: str, known: set[str], groups: set[str]) -> str | None:
    """Return the known key that is most similar to `key`; None if no key is similar.

    For a key in a group it searches the keys outside of all groups (`lr` for `optimizer.lr`), then
    the group's keys, then the keys of the group's other choices. For a key without a group it
    searches keys of this name in all groups (`optimizer.momentum` for `momentum`), then similar
    keys and names of groups.
    """
    group, _, name = key.rpartition(".")
    ends = sorted(k for k in known if k.endswith(f".{key}") and not group)
    if f"compression.{key}" in ends:  # two other groups have the same keys
        ends = [k for k in ends if k.partition(".")[0] not in ("downlink", "gradients")]
    if ends:
        return " or ".join(ends[:3])
    if group and name in known:
        return name
    inside = {each.rpartition(".")[2]: each for each in known if each.rpartition(".")[0] == group}
    if group and inside:
        if near := get_close_matches(name, inside, n=1, cutoff=0.6):
            return inside[near[0]]
        others = {str(k) for path in (CONF / group).glob("*.yaml") for k in OmegaConf.load(path)}
        near = get_close_matches(name, others - {"defaults"}, n=1, cutoff=0.6)
        owners = _owners(group, near[0]) if near else ""
        return f"{group}.{near[0]}, which belongs to {owners}" if owners else None
    meant = known if group else known | groups - {"hydra"}
    return next(iter(get_close_matches(key, meant, n=1, cutoff=0.6)), None)


def new_name(key: str) -> str:
    """Return the error message that says how to add an entry with a new name to a mapping.

    `key`: a key of, or inside, a mapping whose entries the user names, such as `network.classes`.
    """
    known = known_keys()
    parts = key.split(".")
    prefixes = [".".join(parts[:i]) for i in range(len(parts), 0, -1)]
    group = next((prefix for prefix in prefixes if prefix in known), key)
    return (
        f"{group} takes new names whole, beside those that are there: '+{group}={{NAME:{{...}}}}'"
    )


def known_keys() -> list[str]:
    """Return all keys of the default configuration."""
    return [".".join(path) for path in _keys(compose_config([]))]


def _owners(group: str, key: str) -> str:
    """Return, as GROUP=CHOICE, up to three choices of a group that have a key or subgroup `key`."""
    found = []
    for file in sorted((CONF / group).glob("*.yaml")) if key else []:
        content = cast(DictConfig, OmegaConf.load(file))
        nested = [d for d in content.get("defaults", []) if OmegaConf.is_dict(d)]
        if key in content or any(key in d for d in nested):
            found.append(f"{group}={file.stem}")
    return " or ".join(found[:3])


def _keys(node: DictConfig, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in node:
        path = (*prefix, str(name))
        yield path
        if OmegaConf.is_dict(child := node._get_node(name)):
            yield from _keys(cast(DictConfig, child), path)
