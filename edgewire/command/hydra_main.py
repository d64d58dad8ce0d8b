"""Runs the words of a command line: Hydra composes a configuration and calls `command.job.job`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from functools import cache
from typing import Any

import hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.object_type import ObjectType

from edgewire.command.exit import clear_errors
from edgewire.command.job import job
from edgewire.command.saved_config import command_line, started_in
from edgewire.command.sweep import SWEEP, SweepEnd
from edgewire.conf.load import HERE as CONF
from edgewire.machine.processes import orderly_exit
from edgewire.machine.proxies import keep_loopback_direct

main = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)


def run_hydra(words: list[str]) -> None:
    """Let Hydra compose and run the words of a command line.

    Raises `SystemExit` if a run fails (`Failed`) or is stopped (`Stopped`); a failed run of a sweep
    sets `SweepEnd.code`.
    """
    SweepEnd.code = 0
    keep_loopback_direct()
    with clear_errors(), orderly_exit(), unchecked_help(), SWEEP:
        sys.argv = [sys.argv[0], *command_line(words)]
        with chdir(started_in(words)), one_repository():
            main()


@contextmanager
def unchecked_help() -> Iterator[None]:
    """Let Hydra 1.3 make its parser with a help text that is not a string.

    Python 3.14 checks each help text and would refuse this one.
    """
    check = "_check_help"  # the method that checks each help text
    setattr(ArgumentParser, check, lambda parser, action: None)
    try:
        yield
    finally:
        delattr(ArgumentParser, check)


@contextmanager
def one_repository() -> Iterator[None]:
    """Let Hydra list its groups for `--help` with one copy of its config repository, not with 120.

    Only this listing uses the shared copy. When Hydra composes a configuration, it changes its copy
    of the repository, so it makes a new copy then.
    """
    list_options = ConfigLoaderImpl.get_group_options

    @cache
    def repository(loader: ConfigLoaderImpl, config: str | None, overrides: tuple[str, ...]) -> Any:
        return loader._parse_overrides_and_create_caching_repo(config, list(overrides))[1]

    def listed(
        loader: ConfigLoaderImpl,
        group_name: str,
        results_filter: ObjectType | None = ObjectType.CONFIG,
        config_name: str | None = None,
        overrides: list[str] | None = None,
    ) -> Any:
        found = repository(loader, config_name, tuple(overrides or ()))
        return found.get_group_options(group_name, results_filter)

    setattr(ConfigLoaderImpl, list_options.__name__, listed)
    try:
        yield
    finally:
        setattr(ConfigLoaderImpl, list_options.__name__, list_options)
