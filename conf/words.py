"""Says in one line which option of a command line is wrong, and which are valid in its place.

Hydra's errors are texts of several lines. So the words are read again, by Hydra's own parser, and
compared with the configuration that their choices of groups give.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from edgewire.conf.classes import GROUPS, HERE, nested
from edgewire.conf.load import compose_config

COMMANDS = ("new", "compare", "predict", "export")
OWN = (*GROUPS, "model", "dataset")  # groups that take a class or function of the user's


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
        own = f"; or packages=[PACKAGE] {group}._target_=PACKAGE.NAME" if group in OWN else ""
        return f"there is no {group}={name}. there are: {', '.join(options)}{own}"
    with suppress(HydraException, OmegaConfBaseException):  # the choices cannot be composed
        for found in _faults(words):
            return found
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def _faults(words: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with the words of a command line; its options are left out."""
    several = bool({"-m", "--multirun"} & set(words))
    folders = [each for option, each in pairwise(words) if option in ("--config-dir", "-cd")]
    chosen = [[f"hydra.searchpath=['file://{Path(each).absolute()}']"] for each in folders]
    values: list[Override] = []
    for word in words:
        if word.startswith(("-", "~")) or "=" not in word:
            continue
        each = OverridesParser.create().parse_override(word)
        group = (HERE / each.key_or_group).is_dir() and not isinstance(each.value(), dict)
        if each.is_sweep_override() and not several:
            yield f"{word} has several values: quote a text, give [a,b], or add -m for a sweep"
        elif each.key_or_group == "hydra.searchpath":
            chosen.append([word])
        elif each.key_or_group.startswith("hydra/"):
            continue
        elif group:
            chosen.append([str(variant.input_line) for variant in _variants(each)])
            value: Any = each.value()
            names = value if isinstance(value, list) else [value]
            if not each.is_sweep_override() and not all(isinstance(name, str) for name in names):
                yield f"{word}: a group takes a name, as model=mlp"
        else:
            values += _variants(each)
    keys = [each.key_or_group for each in values]
    own = {key.removesuffix("._target_") for key in keys if key.endswith("._target_")}
    for choices in product(*chosen):
        groups = {each: each.lstrip("+").partition("=")[0].partition("@")[0] for each in choices}
        outer = _configuration(*(each for each, group in groups.items() if "/" not in group))
        there = outer.hydra.runtime.choices
        wrong = [group for group in groups.values() if "/" in group and group not in there]
        yield from map(unknown_key, wrong)
        for each in values:
            if each.key_or_group.rpartition(".")[0] not in own:
                yield from _wrong_value(each, choices)
    # Hydra composes a sweep first without the choices that differ between its jobs.
    common = _keys(*(each[0] for each in chosen if len(each) == 1))
    for each in values:
        if several and not each.is_add() and each.key_or_group not in common:
            yield f"not all choices of the sweep have {each.key_or_group}: give ++{each.input_line}"
    for word in (word for word in words if word.startswith("~")):
        key = word.lstrip("~").partition("=")[0]
        yield f"{word}: every run has that key" if key in common else unknown_key(key)


def _variants(word: Override) -> list[Override]:
    """Return the overrides of a sweep's word, one for each value; of another word, the word."""
    if not word.is_sweep_override():
        return [word]
    key, parser = word.get_key_element(), OverridesParser.create()
    return [parser.parse_override(f"{key}={value}") for value in word.sweep_string_iterator()]


@cache
def _configuration(*choices: str) -> DictConfig:
    """Return the configuration of choices of groups, with Hydra's own settings."""
    return compose_config(list(choices), hydra=True)


@cache
def _keys(*choices: str) -> frozenset[str]:
    """Return the dotted keys of `_configuration`, at any depth."""
    plain = OmegaConf.to_container(_configuration(*choices))
    return frozenset(key.removeprefix(".") for key, _ in nested("", plain))


def _wrong_value(word: Override, choices: Sequence[str]) -> Iterator[str]:
    """Yield what is wrong with a key, or what OmegaConf says of its value."""
    key, known = word.key_or_group, word.key_or_group in _keys(*choices)
    if not known and not word.is_add():
        yield unknown_key(key)
    elif known and word.is_add() and not key.startswith("hydra."):
        yield f"{key} is there already: give {str(word.input_line).removeprefix('+')}"
    config = _configuration(*choices).copy()
    try:
        OmegaConf.update(config, key, word.value(), force_add=word.is_add())
    except OmegaConfBaseException as error:
        yield f"{word.input_line}: {str(error).splitlines()[0]}"


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
