"""Makes runs on the local engine in this process, and stops them at a chosen moment."""

from conf.load import run_config, to_config
from simulation.job import Job
from simulation.local import run_local
from strategy.run.run import Run
from tests.runs import ROOT, composed


def local_run(folder, *words, workers=1, resume=False, **job):
    """Make a run on the local engine; `job` holds further fields of `Job`."""
    made = composed(*words)
    config, values = to_config(made), {**run_config(made, str(folder)), "resume": resume}
    run_local(
        Job(ROOT, values, config.nodes, folder, config.seed, config.network, **job),
        workers=workers,
    )


def at_row(monkeypatch, row, act):
    """Call `act` before a run writes row number `row`, from 1 on, of its history."""
    done, count = Run.round_done, 0

    def noting(self, server_round, arrays):
        nonlocal count
        count += 1
        if count == row:
            monkeypatch.setattr(Run, "round_done", done)
            act()
        return done(self, server_round, arrays)

    monkeypatch.setattr(Run, "round_done", noting)


def raising(error):
    """Return a function that raises the error, whatever its arguments."""

    def act(*arguments, **options):
        raise error

    return act
