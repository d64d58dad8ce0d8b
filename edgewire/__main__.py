"""EdgeWire's command: `python -m edgewire`, and `python run.py` in a checkout."""

from edgewire.machine.startup_signals import early_stop
from edgewire.machine.surroundings import print_any_text


def main() -> None:
    """Run the words of the command line; end the process."""
    print_any_text()
    with early_stop():
        from edgewire.command.main import cli

        cli()


if __name__ == "__main__":
    main()
