"""EdgeWire's command: compose the configuration, run it on an engine, print what came out.

`python run.py --help` explains the groups. The user's own mistakes end in one line, exit code 2.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import cast

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one torch thread a process: see README
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
full_errors = bool(os.environ.get("HYDRA_FULL_ERROR", ""))
os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us, not to Hydra's own printer

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.logging import RichHandler

from compression import PayloadError
from conf import Config, ConfigError, run_config
from conf.build import (
    codec_of,
    data_of,
    device_of,
    model_of,
    optimizer_of,
    partition_of,
)
from conf.check import check_target
from conf.load import compose_config, to_config
from report.progress import RunProgress
from report.summary import read_result, summary_table
from simulation.errors import EngineError, UsageError
from simulation.job import Job
from strategy.schedule import Schedule
from strategy.scheme import scheme_of
from task.errors import TaskError

HERE = Path(__file__).parent
STOPPED = 130  # exit code after Ctrl-C
console = Console(highlight=False)
_failed: list[int] = []  # exit codes of a sweep's jobs that failed


def prepare(config: Config) -> None:
    """Load what the run needs once, here: mistakes show now, and forked workers share it."""
    check_target("engine", config.engine)
    codec_of(config)
    data = data_of(config)
    model = model_of(config, data)
    optimizer_of(config, list(model.parameters()))
    device_of(config)
    scheme_of(config)
    Schedule(config.schedule, config.lr).step(loss=1.0)
    partition_of(config, data).indices(0)


def set_up_logging(verbose: bool) -> None:
    """Show our warnings through the console; when `verbose`, all of ours and of Flower's."""
    handler = RichHandler(console=console, show_path=False, show_time=False)
    for name, level in (("edgewire", logging.WARNING), ("flwr", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if verbose else level)


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(composed: DictConfig) -> None:
    """Run one configuration (one job of a sweep)."""
    try:
        with clear_errors():  # in here: Hydra prints a line of its own about what it catches
            run(composed)
    except SystemExit as done:
        stopped = cast(int, done.code) > 128  # by Ctrl-C or another signal
        if stopped or HydraConfig.get().mode is not RunMode.MULTIRUN:
            raise
        _failed.append(cast(int, done.code))  # the sweep's other jobs go on


def cli() -> None:
    """Run what the command line says; exit with the code of the worst of a sweep's jobs."""
    with clear_errors():
        main()
    if _failed:
        sys.exit(max(_failed))


def run(composed: DictConfig) -> None:
    """Run a composed configuration in Hydra's run folder and print its summary."""
    hydra_config = HydraConfig.get()
    experiment = hydra_config.runtime.choices.get("experiment")
    if experiment and hydra_config.mode is not RunMode.MULTIRUN:
        raise ConfigError(f"experiment={experiment} is a sweep: add -m")
    config = to_config(composed)
    set_up_logging(config.verbose)
    folder = Path(HydraConfig.get().runtime.output_dir)
    with console.status("loading"):
        prepare(config)
    values = run_config(composed, output=str(folder))
    job = Job(HERE, values, config.nodes, folder, config.seed, config.network)
    with RunProgress(folder, config.rounds, console):
        instantiate(config.engine)(job)
    result = read_result(folder)
    console.print(summary_table(result, folder))
    if not result["client_updates"]:
        raise EngineError("not one update was used: the log names the nodes that failed, if any")


@contextmanager
def clear_errors() -> Iterator[None]:
    """End with one line and exit code 2 for a user's mistake, 1 for an engine's failure."""
    code: int = 0
    failed: Exception
    try:
        yield
    except (HydraException, OmegaConfBaseException, ConfigError, TaskError, UsageError) as error:
        code, failed = 2, error
    except (EngineError, PayloadError) as error:  # the latter: the server's own model diverged
        code, failed = 1, error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        code, failed = 2, ConfigError(f"{where}{error.strerror or error}")
    except ValueError as error:  # Hydra has no class of its own for some mistakes
        if "hydra" not in Path(traceback.extract_tb(error.__traceback__)[-1].filename).parts:
            raise
        code, failed = 2, error
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(STOPPED)
    if code:
        if full_errors:
            raise failed
        print(f"error: {one_line(failed)}", file=sys.stderr)
        sys.exit(code)


def one_line(error: BaseException) -> str:
    """Return an error's message as one line, Hydra's lists joined by commas."""
    text = str(error)
    cause = str(error.__cause__)
    if isinstance(error, OverrideParseException):
        return f"cannot read {error.override!r}: quote values with special characters, no ~"
    if unknown := re.search(r"Could not override '([^']+)'", text):
        return unknown_key(unknown[1], cause)
    if whole := re.search(r"override \+*([^=]+)=[\s\S]*is not a subclass of", text + cause):
        return new_name(whole[1])
    if text.startswith("Error merging override") and error.__cause__ is not None:
        text = f"{text.removeprefix('Error merging override ')}: {error.__cause__}"
    text = re.sub(r"\n+Config search path:.*", "", text, flags=re.DOTALL)
    text = re.sub(r"\n\s*(full_key|object_type|reference_type)[:=].*", "", text)
    text = re.sub(r"^In '[^']*': Could not find '(.+)/(.+)'", r"there is no \1=\2", text)
    text = re.sub(r"Available options in '[^']*':\n\t", "there are: ", text)
    text = re.sub(r"\n\t", ", ", text)
    lines = [line.strip().rstrip(".") for line in text.splitlines() if line.strip()]
    return ". ".join(lines)


def unknown_key(key: str, reason: str) -> str:
    """Return what to say of a key that Hydra refused, and why it did."""
    if re.search(r"reference_type=Dict\[str, (?!Any)", reason):
        return new_name(key)
    known = known_keys()
    groups = {path.name for path in (HERE / "conf").iterdir() if path.is_dir()}
    if key in known:
        return f"{key} does not go with the other choices made: it belongs to another of its group"
    parts = key.replace("/", ".").split(".")
    if owners := _owners(parts[0], ".".join(parts[1:])) or _owners("/".join(parts[:-1]), parts[-1]):
        return f"{key} does not go with the other choices made: it belongs to {owners}"
    near = get_close_matches(key, {k for k in known if "._" not in k} - groups, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]}?" if near else "python run.py --help lists all keys"
    return f"there is no key {key}; {hint}"


def new_name(key: str) -> str:
    """Return how a name that is not there yet is given; `key` is in a group of free names."""
    known = known_keys()
    parts = key.split(".")
    prefixes = [".".join(parts[:i]) for i in range(len(parts), 0, -1)]
    group = next((prefix for prefix in prefixes if prefix in known), key)
    return (
        f"{group} takes new names whole, beside those that are there: '+{group}={{NAME:{{...}}}}'"
    )


def known_keys() -> list[str]:
    """Return all keys of the default configuration."""
    return [".".join(path) for path in _keys(compose_config([]))]


def _owners(group: str, key: str) -> str:
    """Return the choices of a group that have a key, or a group of their own of that name."""
    found = []
    for file in sorted((HERE / "conf" / group).glob("*.yaml")) if key else []:
        content = cast(DictConfig, OmegaConf.load(file))
        nested = [d for d in content.get("defaults", []) if OmegaConf.is_dict(d)]
        if key in content or any(key in d for d in nested):
            found.append(f"{group}={file.stem}")
    return " or ".join(found[:3])


def _keys(node: DictConfig, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name in node:
        path = (*prefix, str(name))
        yield path
        if OmegaConf.is_dict(child := node._get_node(name)):
            yield from _keys(cast(DictConfig, child), path)


if __name__ == "__main__":
    cli()
