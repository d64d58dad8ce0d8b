"""Makes a job of a configuration, and finds the engine that runs it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from omegaconf import DictConfig

from edgewire.conf.check import check_target
from edgewire.conf.load import run_config
from edgewire.conf.network import only_virtual
from edgewire.conf.own_packages import sources_of
from edgewire.conf.schema import Config
from edgewire.machine.job import Job

ROOT = Path(__file__).parents[2]


def job_of(config: Config, composed: DictConfig, folder: Path) -> Job:
    """Return the job of a configuration, typed and as composed."""
    return Job(
        ROOT,
        {**run_config(composed, output=str(folder))},
        config.nodes,
        folder,
        config.seed,
        config.network,
        only_virtual=only_virtual(config.network),
        device=config.device,
        verbose=config.verbose,
        sources=sources_of(config.packages),
    )


def engine_for(config: Config, task: Job) -> Callable[[Job], None]:
    """Return the function with which the configured engine runs a job, after a check of the job.

    The check calls `refuse(job, **options)` in the engine's module, which raises an error for
    settings that the engine does not support.
    """
    engine = check_target("engine", config.engine)
    module = import_module(engine.make.__module__)
    if refuse := getattr(module, "refuse", None):
        refuse(task, **engine.options)
    return engine.made
