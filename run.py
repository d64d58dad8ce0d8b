"""EdgeWire's command. `python run.py --help` explains the groups."""

from command.main import cli

if __name__ == "__main__":
    cli()
