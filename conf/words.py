"""Says in one line which option of a command line is wrong, and which are valid in its place.

Hydra's errors are texts of several lines, in which the key and the word stand.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from edgewire.conf.classes import GROUPS, HERE, nested
from edgewire.conf.load import compose_config

MOST_JOBS = 20  # of a sweep that are composed after an error
COMMANDS = ("new", "compare", "predict", "export")


def explained(error: BaseException, words: Sequence[str]) -> str:
    """Return an error of Hydra's as one line; `words`: the command line that Hydra has read."""
    if isinstance(error, OverrideParseException):
        word = str(error.override)
        if "=" not in word and (near := get_close_matches(word, COMMANDS, n=1)):
            return f"there is no command {word}; did you mean {near[0]}?"
        return f"cannot read {error.override!r}: quote values with special characters, no ~"
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        if not group:
            return f"there is no configuration {name}"
        options = error.options or sorted(path.stem for path in (HERE / group).glob("*.yaml"))
        return f"there is no {group}={name}. there are: {', '.join(options)}"
    first, cause = next(filter(None, map(str.strip, str(error).splitlines())), ""), error.__cause__
    theirs = isinstance(error, HydraException | OmegaConfBaseException)
    for word in () if theirs else filter(_is_nameless, words):
        return f"{word}: a group takes a name, as model=mlp"
    at, said = getattr(cause, "full_key", "") or "", str(cause).partition("\n")[0]
    word = first.removeprefix("Error merging override ")
    if word != first:
        key = word.lstrip("+~").partition("=")[0]
        if word.startswith("~"):
            return f"{word}: every run has that key"
        added = word.startswith("+") and not word.startswith("++")
        return unknown_key(key) if key.startswith(f"{at}.") and not added else f"{word}: {said}"
    if found := re.match("(Ambiguous value for argument|Sweep parameters) '(.*)'", first):
        return f"{found[2]} has several values: quote a text, give [a,b], or add -m for a sweep"
    if found := re.match(r"Could not append [^']*'(.*)'\.\s.*'(.*)'", str(error)):
        return f"{found[1]} is there already: give {found[2]}"
    if found := re.match("Could not delete from config. The value of '(.*?)'", first):
        return f"~{found[1]}: every run has that key"
    if found := re.match("Could not (?:override|delete.*) '(?!hydra/)([^'@]*)'", first):
        key, word = found[1], str(error).rpartition(" use +")[2]
        if at.startswith(f"{key}."):
            return f"{word}: {said}"
        if {"-m", "--multirun"} & {*words} and _has_jobs_with(words):
            return f"not all choices of the sweep have {key}: give ++{word}"
        return unknown_key(key)
    return first.rstrip(".") or type(error).__name__


def _is_nameless(word: str) -> bool:
    """Return whether a word gives a group something else than names of its choices."""
    with suppress(HydraException):
        each = OverridesParser.create().parse_override(word)
        value = each.value()
        names = value if isinstance(value, list) else [value]
        group = (HERE / each.key_or_group).is_dir() and not each.is_sweep_override()
        return group and not all(isinstance(name, str | dict) for name in names)
    return False  # an option


def _has_jobs_with(words: Sequence[str]) -> bool:
    """Return whether one of a sweep's first jobs can be composed.

    Hydra composes a sweep first without the choices that differ between its jobs.
    """
    from edgewire.conf.sweeper import jobs_of  # here, because it searches all plugins

    folders = [each for option, each in pairwise(words) if option in ("--config-dir", "-cd")]
    own = [f"hydra.searchpath=['file://{Path(each).absolute()}']" for each in folders]
    given = [word for word in words if not word.startswith("-") and word not in folders]
    for job in jobs_of({}, OverridesParser.create().parse_overrides(given))[:MOST_JOBS]:
        with suppress(HydraException, OmegaConfBaseException):
            compose_config([*own, *job])
            return True
    return False


@cache
def _keys() -> frozenset[str]:
    """Return the dotted keys of the default configuration with Hydra's own, at any depth."""
    plain = OmegaConf.to_container(compose_config([], hydra=True))
    return frozenset(key.removeprefix(".") for key, _ in nested("", plain))


def unknown_key(key: str) -> str:
    """Return the error message for a key that the configuration does not have.

    It names the choices that have the key, else keys of the same name, else the most similar key.
    """
    dotted = key.replace("/", ".")
    group, name = dotted.partition(".")[0], dotted.rpartition(".")[2]
    known = [key for key in _keys() if key and key.partition(".")[0] != "hydra"]
    owners = _owners(group)
    belongs = {k: f"belongs to {' or '.join(found[:3])}" for k, found in owners.items()}
    if key in known or dotted in owners:
        choices = belongs.get(dotted, "belongs to another of its group")
        return f"{key} does not go with the other choices made: it {choices}"
    # `downlink` and `gradients` have the same keys as `compression`.
    own = [key for key in known if key.partition(".")[0] not in ("downlink", "gradients")]
    same = [key for key in own if key.endswith(f".{name}")]
    near = [name] if name in known else sorted(same)[:3]
    groups = [path.name for path in HERE.iterdir() if path.is_dir() and path.name != "hydra"]
    if name == "_target_" and dotted.rpartition(".")[0] in owners:
        hint = f"an object in place of a value needs a plus sign: +{key}="
    elif near := near or get_close_matches(dotted, {*known, *owners, *groups}, n=1, cutoff=0.6):
        other = "" if near[0] in known else belongs.get(near[0], "")
        hint = f"did you mean {' or '.join(near)}{other and f', which {other}'}?"
    elif group in GROUPS:
        hint = f"an option of a class of your own needs a plus sign: +{key}="
    else:
        hint = "python run.py --help lists all keys"
    return f"there is no key {key}; {hint}"


def _owners(group: str) -> dict[str, list[str]]:
    """Return the keys and inner groups of a group's choices, each with the choices that have it."""
    found = defaultdict[str, list[str]](list)
    for file in sorted((*HERE.glob(f"{group}/*.yaml"), *HERE.glob(f"{group}/*/*.yaml"))):
        content = cast(DictConfig, OmegaConf.load(file))
        inner = [
            key for each in content.pop("defaults", []) if OmegaConf.is_dict(each) for key in each
        ]
        place = file.parent.relative_to(HERE).as_posix()
        for key in (*content, *inner):
            found[f"{place}.{key}".replace("/", ".")].append(f"{place}={file.stem}")
    return dict(found)
