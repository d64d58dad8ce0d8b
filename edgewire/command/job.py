"""Hydra's task function `job`: runs a configuration on its engine and prints the result.

Launchers of sweeps pickle `job` by its name, and call it in other processes.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.logging import RichHandler

from edgewire.command.engine import engine_for, job_of
from edgewire.command.exit import CALLER, Diverged, Failed, clear_errors
from edgewire.command.from_data import SURVEYED, cost_of, from_data, is_submitted, loaded
from edgewire.command.run_lock import run_lock
from edgewire.command.saved_config import RESUME, completed, continues, own_folders, resumes
from edgewire.command.sweep import BASIC, REFUSED, SweepEnd, begin_job, may_begin, note_failure
from edgewire.compression.base import PayloadError
from edgewire.conf.check import PROTECTIONS, build, check_targets, expect_on
from edgewire.conf.load import name_algorithm, typed
from edgewire.conf.own_packages import INSTALLED, look_in
from edgewire.conf.privacy import SAMPLE
from edgewire.conf.schema import Config, ConfigError
from edgewire.machine.errors import Ended, EngineError
from edgewire.machine.job import PLACE
from edgewire.machine.processes import delayed, orderly_exit
from edgewire.machine.startup_signals import under_way
from edgewire.pipeline.segments_table import segments_table
from edgewire.report.card import CARD, write_card
from edgewire.report.format import human_bytes
from edgewire.report.loggers.following import logged, loggers_of
from edgewire.report.progress import VIEW, run_progress
from edgewire.report.reader import ResultsError, readable
from edgewire.report.runs import HYDRA, PATH, read_result, run_of
from edgewire.report.summary import screen as summary
from edgewire.report.summary import trained
from edgewire.report.table import WIDTH
from edgewire.strategy.run.checkpoint_file import FILE as CHECKPOINT
from edgewire.strategy.run.whole_files import NotWritten, replace_file
from edgewire.task.model_file import file_of
from edgewire.task.tables.columns import Columns

RATES = ("eta", "server_learning_rate")  # options of Flower's with the server's learning rate
RUN_FILES = ("result.json", "history.jsonl", "model.safetensors", "nodes.json", CARD, CHECKPOINT)
console = Console(highlight=False, quiet=VIEW in os.environ)
if not console.is_terminal:
    console.width = WIDTH
silent = Console(quiet=True)
log = logging.getLogger("edgewire")


def job(composed: DictConfig) -> None:
    """Run one configuration, and raise `Failed` if it fails.

    In a sweep, write the failure into the job's folder instead, so that the other jobs continue. If
    another process has the folder's lock, write it into the sweep's folder.
    """
    hydra = HydraConfig.get()
    name_algorithm(composed, hydra.runtime.choices)
    folder = CALLER.folder = Path(hydra.runtime.output_dir)
    sweep, began, held = hydra.mode is RunMode.MULTIRUN, time.time(), ExitStack()
    place = Path(hydra.sweep.dir, REFUSED, str(hydra.job.num)) if sweep else folder
    try:
        # Errors are handled here, because Hydra would print a line for an exception.
        with under_way(), clear_errors(), orderly_exit():
            held.enter_context(run_lock(folder))
            place = folder
            write_configuration(composed, folder)
            if sweep and not may_begin(folder):
                return
            try:
                run(composed, folder)
            except (KeyboardInterrupt, Ended) as stop:
                stop.add_note(how_to_resume(folder, sweep=sweep))
                raise
    except Failed as failed:
        if not sweep:
            if place == folder and {each.name for each in folder.iterdir()} == {HYDRA.name}:
                shutil.rmtree(folder, ignore_errors=True)  # refused before it has begun
            raise
        file = folder / "result.json"  # of an earlier run, whose overrides are overwritten
        earlier = file.exists() and file.stat().st_mtime < began
        if earlier and place == folder and not continues():
            file.rename(folder / "result.before.json")
        stops = composed.get("stop_on_failure") and not has_diverged(place)
        note_failure(place, cast(int, failed.code), failed.line, stop=bool(stops))
    finally:
        held.close()


def write_configuration(composed: DictConfig, folder: Path) -> None:
    """Write `.hydra/`, as Hydra does before it calls `job`; a resumed run keeps its own."""
    hydra = HydraConfig.get()
    path = [each for each in map(str, sys.path) if not INSTALLED & {*Path(each).parts}]
    files = {"config": composed, "hydra": HydraConfig.instance().cfg, PATH.stem: path}
    if hydra.job.name != RESUME:
        for name, content in {**files, "overrides": hydra.overrides.task}.items():
            replace_file(folder / HYDRA / f"{name}.yaml", OmegaConf.to_yaml(content))


def run(composed: DictConfig, folder: Path) -> None:
    """Run a composed configuration in Hydra's run folder and print its summary."""
    refuse_sweep()
    composed, hydra = completed(composed), HydraConfig.get()
    look_in(own_folders(composed, folder))
    config = typed(composed)
    loggers = loggers_of(config)
    set_up_logging(config.verbose)
    screen = silent if CALLER.python else console
    if CALLER.python:
        with delayed():  # a process cannot import torch again after an interrupted import
            import_module("torch")
    if not resumes():
        (folder / SURVEYED).unlink(missing_ok=True)
        engine_for(config, job_of(config, composed, folder))  # refuses before data are read
    finished = composed
    if hydra.job.name != RESUME:
        finished = from_data(composed, folder, hydra.overrides.task)
    if finished is not composed:
        composed, config = finished, typed(finished)
        write_configuration(composed, folder)
        if (columns := config.dataset.own.get("columns")) and columns != CALLER.columns:
            CALLER.columns = columns
            screen.print("\n".join(Columns.from_json(columns).lines()), markup=False)
            if cost := cost_of(folder):
                screen.print(
                    f"of {cost['nodes']} of {cost['asked']} nodes, which sent "
                    f"{human_bytes(cost['uplink_bytes'])} about their columns",
                    markup=False,
                )
    given = {word.lstrip("+").partition("=")[0] for word in hydra.overrides.task}
    _expect_on(config, given)
    if "rounds" in given and "pushes" in config.strategy:
        log.warning(
            "rounds= has no effect: this strategy has no rounds and ends after strategy.pushes=%s",
            config.strategy["pushes"],
        )
    codecs = (config.compression, config.downlink)
    takes = any(each.sparsifier == "energy" and each.fidelity is not None for each in codecs)
    if "batch_size" in given and config.privacy.unit == SAMPLE:
        log.warning("batch_size= has no effect: privacy.rate= draws the mini-batches")
    if config.privacy.anyway and config.privacy.unit == SAMPLE:
        log.warning("privacy.anyway= has no effect: it is for privacy=node")
    if "fidelity" in given and not takes:
        log.warning("fidelity= has no effect: compression=edgewire and downlink=edgewire have it")
    task = job_of(config, composed, folder)
    if begin_job(folder, task.run_config["config"]):
        return
    if resumes():
        task.run_config[RESUME] = True
    with screen.status("loading") if alone() else nullcontext():
        engine = engine_for(config, task)
        subject = prepare(config)
    if config.privacy.on:
        from edgewire.strategy.privacy.ledger import announced  # as `prepare`, it imports torch

        screen.print(f"privacy    {announced(config, folder)}", markup=False, soft_wrap=True)
    try:
        from edgewire.conf.build import objective_of  # it imports torch, as `prepare` does

        metric = objective_of(config).main
        progress = run_progress(
            folder,
            config.rounds,
            console if CALLER.progress else silent,
            shared=not alone(),
            name=f"job {hydra.job.num}: " if hydra.mode is RunMode.MULTIRUN else "",
            metric=metric,
            title=trained(run_of(folder, subject)) if alone() else "",
        )
        logs = logged(loggers, folder, task.run_config["config"], resumes())
        with result_aside(folder), logs, progress:
            engine(task)
    except NotWritten as error:
        raise EngineError(f"{error}; {how_to_resume(folder, sweep=False)}") from error
    except (EngineError, PayloadError):
        if not has_diverged(folder):
            raise
    result = read_result(folder)
    if cost := cost_of(folder):
        result = {**result, "survey": cost}
        replace_file(folder / "result.json", json.dumps(result, indent=2) + "\n")
    if hydra.mode is RunMode.MULTIRUN:
        said = f"{metric.name} {metric.text(result.get(metric.name))}"
        line = SweepEnd.line(hydra.job.num, hydra.overrides.task, said)
        (console if CALLER.progress else silent).print(line, markup=False, soft_wrap=True)
        screen = silent
    screen.print("\n".join(summary(folder)), markup=False, soft_wrap=True)
    if result.get("segments"):
        screen.print(segments_table(result))
    if result["diverged"]:
        raise Diverged(f"the run has diverged; try {what_to_try(config)}")
    if not result["client_updates"]:
        raise EngineError("not one update was used: the log names the nodes that failed, if any")
    try:
        write_card(folder)
    except (OSError, ResultsError) as error:
        log.warning("no model card (%s) can be written: %s", CARD, error)


def _expect_on(config: Config, given: Collection[str]) -> None:
    """Raise `ConfigError` as `expect_on`, and warn if a private run's model loses its bound.

    A sweep may have jobs with `privacy=none` beside others, and one word for the others' options. A
    saved configuration of such a job has these options, too: there only words count.
    """
    hydra = HydraConfig.get()
    swept = [*hydra.overrides.task] if hydra.mode is RunMode.MULTIRUN else []
    groups = [group for group in PROTECTIONS if f"{group}=none" not in swept]
    saved = [group for group in groups if group not in hydra.runtime.choices]
    expect_on(config, given, groups, saved)
    before = Path(file_of(config.model.file)).parent if config.model.file else None
    if before and (before / "privacy.jsonl").exists() and not config.privacy.on:
        log.warning("the model is of a private run, and privacy= is none: this run has no bound")


def how_to_resume(folder: Path, *, sweep: bool) -> str:
    """Return the message that says how to resume a stopped run."""
    if CALLER.searching:
        return "the same command starts the search anew"
    word = f"resume={folder}"
    call, effect = f"train(resume={str(folder)!r})", "resumes it"
    if sweep:
        top = Path(HydraConfig.get().sweep.dir).absolute()
        word = f"continue={top}"
        call, effect = f"sweep({word!r})", "continues the sweep"
        report = f", `python -m edgewire.report {shlex.quote(str(top))}` then compares its runs"
        effect += report * CALLER.shell
    elif not any((folder / name).is_file() for name in (CHECKPOINT, PLACE)):
        return "no checkpoint was written yet: the same command starts a new run"
    shell = CALLER.shell or not CALLER.python
    return f"`{f'python run.py {shlex.quote(word)}' if shell else call}` {effect}"


@contextmanager
def result_aside(folder: Path) -> Iterator[None]:
    """Remove the folder's earlier result in this context, and all files of an earlier run.

    A run that is resumed keeps its files. Its result is renamed in this context, which needs no
    space, and is restored at the end if the job has written no new result.
    """
    file, before = folder / "result.json", folder / "result.resumed.json"
    if resumes() and file.exists():
        file.replace(before)
    for name in () if resumes() else (*RUN_FILES, before.name):
        (folder / name).unlink(missing_ok=True)
    try:
        yield
    finally:
        if before.exists() and not file.exists():
            before.replace(file)
        before.unlink(missing_ok=True)


def has_diverged(folder: Path) -> bool:
    """Return whether a run's result says that its model has diverged."""
    return bool((readable(read_result, folder) or {}).get("diverged"))


def alone() -> bool:
    """Return whether this job alone prints on the screen: no sweep runs other jobs beside it."""
    hydra = HydraConfig.get()
    return hydra.mode is not RunMode.MULTIRUN or hydra.launcher["_target_"] == BASIC


def refuse_sweep() -> None:
    """Raise `ConfigError` if an experiment of several jobs is run without `-m`."""
    hydra = HydraConfig.get()
    experiment, sweeper = hydra.runtime.choices.get("experiment"), hydra.sweeper
    several = sweeper.get("params") or sweeper.get("cases")
    if experiment and several and hydra.mode is not RunMode.MULTIRUN:
        raise ConfigError(f"experiment={experiment} is a sweep: add -m")


def what_to_try(config: Config) -> str:
    """Return the learning rates to change so that this run may not diverge."""
    rates = {f"strategy.{rate}": config.strategy.get(rate) for rate in RATES}
    found = {"lr": config.lr, **{key: value for key, value in rates.items() if value is not None}}
    return " or ".join(f"a lower {key}= (it is {value:g})" for key, value in found.items())


def prepare(config: Config) -> dict[str, Any]:
    """Load data and model once, so mistakes show before the run and forked workers share memory.

    Returns what the run trains (`edgewire.conf.build.subject_of`).

    This imports torch, which takes seconds. So the checks that do not need torch come first.
    """
    # `build` imports the strategy's module; EdgeWire's strategies would import torch.
    if str(config.strategy.get("_target_")).startswith("flwr."):
        from edgewire.conf.rules import check_flower  # it imports Flower

        check_flower(build("strategy", config.strategy), config)
    check_targets(config)
    from edgewire.conf import build as built
    from edgewire.strategy.factory import asks_nodes, fit, made
    from edgewire.strategy.lr_schedule import Schedule
    from edgewire.task.flat_model import expect_tensors
    from edgewire.task.local.dp_sgd import expect_private
    from edgewire.task.steps import expect_fits, expect_trains

    scheme = made(config)  # this check needs no data; the checks below need data
    data, objective = loaded(config), built.objective_of(config)
    if not is_submitted(config) and not len(data.train):
        raise ConfigError(f"dataset: {config.dataset.name} has no training samples")
    model = built.model_of(config, data)
    built.optimizer_of(config, list(model.parameters()))
    built.device_of(config)
    if len(data.train):  # if there are none, only the nodes have training data
        expect_tensors(model)
        expect_fits(model, objective, data)
    fit(scheme, config, data)
    if len(data.train) and asks_nodes(scheme):
        expect_fits(model, objective, data, mean=True)
    private, by_sample = config.privacy, config.privacy.unit == SAMPLE
    units = len(data.train) if by_sample else config.nodes
    if private.on and units and private.delta >= 1 / units:
        text = "privacy.delta=%g allows that one %s is not hidden at all: give one well below 1/%d"
        log.warning(text, private.delta, private.unit, units)
    if by_sample and len(data.train):
        expect_private(model, objective, built.local_of(config).precision, data)
    Schedule(config.schedule, config.lr, objective).step(loss=1.0)
    if len(data.train):
        samples = min(config.batch_size, len(built.partition_of(config, data).indices(0)))
        if samples == 1 and getattr(scheme, "sends_models", True):  # a cut model's has all samples
            expect_trains(model, objective, data)
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return built.subject_of(config, data, count)


def set_up_logging(verbose: bool) -> None:
    """Show this project's warnings on the console; if `verbose`, all messages, also Flower's."""
    handler = RichHandler(console=console, show_path=False, show_time=False)
    import flwr.supercore  # noqa: F401  # its import sets the level of its logger

    for name, level in (("edgewire", logging.WARNING), ("flwr", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if verbose else level)
