"""The command line: Hydra composes what it says, and calls `command.job` with it."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager

import hydra

from command.errors import clear_errors
from command.job import job
from command.saved import command_line
from command.sweep import SweepEnd
from conf.load import HERE as CONF
from simulation.processes import orderly_exit

main = hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)


def cli() -> None:
    """Run what the command line says; exit with the code of the worst of a sweep's jobs."""
    SweepEnd.code = 0
    with clear_errors(), orderly_exit(), unchecked_help():
        sys.argv[1:] = command_line(sys.argv[1:])
        main()
    if SweepEnd.code:
        sys.exit(SweepEnd.code)


@contextmanager
def unchecked_help() -> Iterator[None]:
    """Let Hydra 1.3 make its parser: one of its help texts is no string, as Python 3.14 expects."""
    check = "_check_help"  # of all help texts, as they are added; a parser's own goes before it
    setattr(ArgumentParser, check, lambda parser, action: None)
    try:
        yield
    finally:
        delattr(ArgumentParser, check)
