"""The command line: `new`, `compare`, `predict`, `export`, and words that Hydra reads."""

from __future__ import annotations

import sys

from edgewire.command.exit import clear_errors
from edgewire.command.hydra_main import run_hydra
from edgewire.command.new_task import NEW, new_task
from edgewire.command.sweep import SweepEnd

COMPARE = "compare"  # the word of the command line that compares methods
PREDICT, EXPORT = "predict", "export"  # the words that use the model of a run


def cli() -> None:
    """Run the command line; exit with the run's exit code, or a sweep's highest exit code.

    `new NAME` writes the folder of a task, and `predict` and `export` use a run's model; all other
    words are Hydra's.
    """
    if sys.argv[1:2] == [NEW]:
        with clear_errors():
            print(new_task(sys.argv[2:]))
        return
    if sys.argv[1:2] == [COMPARE]:
        from edgewire.command.compare import compare  # its imports take half a second
        from edgewire.command.search import search

        with clear_errors():
            sys.exit(compare(sys.argv[2:], search))
    if sys.argv[1:2] in ([PREDICT], [EXPORT]):
        from edgewire.command import use

        with clear_errors():
            {PREDICT: use.predict, EXPORT: use.export}[sys.argv[1]](sys.argv[2:])
        return
    run_hydra(sys.argv[1:])
    if SweepEnd.code:
        sys.exit(SweepEnd.code)
