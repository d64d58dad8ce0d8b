"""The command line: `new`, `compare`, `predict`, `export`, and words that Hydra reads."""

from __future__ import annotations

import sys

from edgewire.command.exit import clear_errors
from edgewire.command.hydra_main import run_hydra
from edgewire.command.new_task import new_task
from edgewire.command.sweep import SweepEnd


def cli() -> None:
    """Run the command line; exit with the run's exit code, or a sweep's highest exit code."""
    code = 0
    with clear_errors():
        match sys.argv[1:]:
            case ["new", *words]:
                print(new_task(words))
            case ["compare", *words]:
                from edgewire.command.compare import compare  # its imports take half a second
                from edgewire.command.search import search

                code = compare(words, search)
            case ["predict", *words]:
                from edgewire.command.use import predict

                predict(words)
            case ["export", *words]:
                from edgewire.command.use import export

                export(words)
            case words:
                run_hydra(words)
                code = SweepEnd.code
    if code:
        sys.exit(code)
