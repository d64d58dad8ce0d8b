"""EdgeWire's command. `python run.py --help` explains the configuration groups."""

from simulation.early_stop import early_stop

if __name__ == "__main__":
    with early_stop():
        from command.main import cli

        cli()
