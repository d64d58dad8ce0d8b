"""The ServerApp, which reads a run's configuration, trains a model and writes the result files."""

import logging
from contextlib import nullcontext, suppress
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from edgewire.compression.base import PayloadError
from edgewire.conf.build import objective_of
from edgewire.conf.check import check_target
from edgewire.conf.load import load_config
from edgewire.conf.network import only_virtual
from edgewire.conf.privacy import NODE
from edgewire.conf.schema import ConfigError
from edgewire.conf.trust import output_of
from edgewire.protocol.choose_grid import bundled
from edgewire.protocol.run_ended import was_stopped
from edgewire.strategy.ordered_grid import OrderedGrid, count_nodes
from edgewire.strategy.privacy.ledger import BudgetSpent, Ledger
from edgewire.strategy.run.checkpoint_file import forget
from edgewire.strategy.run.checkpointer import CheckpointedGrid, RunCheckpointer
from edgewire.strategy.run.graceful_shutdown import GracefulShutdown
from edgewire.strategy.run.membership import MembershipGrid
from edgewire.strategy.run.node_log import NodeLog
from edgewire.strategy.run.run import Run
from edgewire.strategy.run.run_log import RunLog
from edgewire.task.process import configure_process
from edgewire.task.tables.columns import SURVEY

app = ServerApp()
log = logging.getLogger("edgewire")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configured strategy with the grid's nodes."""
    mark_warnings()
    config = load_config(context.run_config, count_nodes(grid))
    check_target("partition", config.partition)  # one error here instead of one at every node
    lasting = grid if isinstance(grid, CheckpointedGrid) else None
    # A run that `flwr run` starts directly uses the nodes that are online. All other runs have a
    # complete configuration in "config", with the number of nodes. With privacy=node, whether a
    # node takes part must not depend on others, so all do.
    by_node = config.privacy.unit == NODE
    most = config.nodes if context.run_config.get("config") and not by_node else None
    nodes = None if lasting else MembershipGrid(bundled(grid), grid.run.run_id, most)
    folder, resume = output_of(context.run_config), bool(context.run_config.get("resume"))
    objective = objective_of(config)
    node_log = NodeLog(nodes or grid, folder, objective.main.name, objective.defined)
    node_log.losses, node_log.samples = not config.privacy.on, not by_node
    ledger = Ledger(node_log, config, folder) if config.privacy.on else None
    grid = OrderedGrid(ledger or node_log)
    if grid.virtual_seconds is None and (said := only_virtual(config.network)):
        raise ConfigError(
            f"these nodes' time is real, and nothing emulates {said}; `python run.py` has a "
            "virtual clock"
        )
    configure_process()
    if config.dataset.own.get("columns") == SURVEY:
        if not folder or most is None:
            raise ConfigError("a survey of columns is for `python run.py`: give dataset.columns=")
        from edgewire.strategy.survey import survey  # it imports pyarrow

        survey(grid, config, Path(folder))
        return
    if resume and not folder:
        raise ConfigError("resume needs output=, the folder of the run to resume")
    run = Run(config, grid, RunLog(folder, objective, anew=not resume), node_log)
    if ledger is not None:
        run.ledger, run.strategy.count_round = ledger, ledger.count_round
    if nodes is not None:
        nodes.strategy = run.strategy
    shutdown = GracefulShutdown(folder)
    checkpointer = RunCheckpointer(run, lasting, shutdown, nodes)
    if resume:
        checkpointer.load(Path(folder))
    else:
        forget(folder)
    try:
        with shutdown if checkpointer.folder else nullcontext():
            run.start()
    except BudgetSpent as spent:
        run.finish(stopped=str(spent))
    except PayloadError as error:  # write the last model and the reason why the run stopped
        with suppress(OSError):
            run.finish(stopped=str(error))
        raise
    except BaseException as error:  # also after a signal: end at once, without an evaluation
        with suppress(OSError):  # if the disk is full, an earlier `model.safetensors` stays
            run.finish(stopped=why(error, wanted=shutdown.wanted), measure=False)
        shutdown.go()  # a delayed signal now ends the process
        raise
    else:
        run.finish()
    forget(folder)
    shutdown.go()  # a delayed signal also ends a sweep before its next run


def mark_warnings() -> None:
    """Print EdgeWire's warnings with level and logger name if the logger has no handler.

    `edgewire.engines.control` searches the run's log for level and logger name.
    """
    if not log.hasHandlers():  # Flower started this process, and its output is the run's log
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
        log.addHandler(handler)


def why(error: BaseException, *, wanted: bool = False) -> str:
    """Return in one line why a run ended; "interrupted" if a user or a signal stopped it.

    `wanted`: True if a stop was requested and delayed. Then the stop is taken as the cause, because
    a later failure may have the same cause.
    """
    if not isinstance(error, Exception) or wanted or was_stopped(error):
        return "interrupted"
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[-1] if said else ''}"
