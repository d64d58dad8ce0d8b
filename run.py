"""EdgeWire's command and its Python functions.

`python run.py --help` explains the configuration groups. In Python: `from run import sweep, train`.
"""

from edgewire.machine.startup_signals import early_stop
from edgewire.machine.surroundings import print_any_text

if __name__ == "__main__":
    print_any_text()
    with early_stop():
        from edgewire.command.main import cli

        cli()
else:
    from edgewire.command.python_api import RunFailed, sweep, train

    __all__ = ["RunFailed", "sweep", "train"]
