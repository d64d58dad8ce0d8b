"""Checks the overrides of a submitted run, which must not configure Hydra itself."""

from __future__ import annotations

import re
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from conf.schema import ConfigError
from conf.submitted_runs import abbreviate, expect_plain
from conf.targets import HERE


def submitted_overrides(overrides: list[str]) -> list[str]:
    """Check a submitted run's overrides; return them unchanged.

    Raises `ConfigError`, or Hydra's own errors, for an override that is neither a choice of a group
    in conf/ nor a value of a key. The function uses Hydra's own parser, so that quoting and
    escaping hide nothing. Call it before Hydra composes, because composing opens files by these
    names and calls some resolvers.
    """
    for word in OverridesParser.create().parse_overrides(overrides):
        _expect_ours(word)
    return overrides


def _expect_ours(word: Override) -> None:
    key, line = word.get_key_element(), str(word.input_line)
    parts = re.split(r"[/.@:]", key.lstrip("+~"))
    if "hydra" in parts:
        raise _refused(line, "Hydra's own settings are this machine's")
    if not all(re.fullmatch(r"\w+", part) for part in parts):
        raise _refused(line, "keys and groups are names")
    if word.is_sweep_override():
        raise _refused(line, "it is one run, and no sweep")
    if word.is_delete():
        return
    value = word.value()
    expect_plain(value)
    if (HERE / word.key_or_group).is_dir():
        for choice in value if isinstance(value, list) else [value]:
            _expect_choice(line, choice)


def _expect_choice(line: str, choice: Any) -> None:
    """Refuse a choice that is not a plain name: with a path Hydra would open any file."""
    if choice is not None and not re.fullmatch(r"\w+", str(choice)):
        raise _refused(line, "a group's choice is a name")


def _refused(line: str, why: str) -> ConfigError:
    return ConfigError(f"{abbreviate(line)}: {why}, for a run that is submitted")
