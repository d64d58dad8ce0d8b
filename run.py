"""EdgeWire's command and its Python functions.

`python run.py --help` explains the configuration groups. In Python: `from run import sweep, train`.
"""

from simulation.early_stop import early_stop
from simulation.surroundings import print_any_text

if __name__ == "__main__":
    print_any_text()
    with early_stop():
        from command.main import cli

        cli()
else:
    from command.python_api import RunFailed, sweep, train

    __all__ = ["RunFailed", "sweep", "train"]
