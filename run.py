"""EdgeWire's command: compose the configuration, run it on an engine, print what came out.

`python run.py --help` explains the groups. The user's own mistakes end in one line, exit code 2.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one torch thread a process: see README
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
full_errors = bool(os.environ.get("HYDRA_FULL_ERROR", ""))
os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us, not to Hydra's own printer

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console
from rich.logging import RichHandler

from conf import Config, ConfigError, run_config
from conf.build import codec_of, data_of, model_of, optimizer_of, partition_of
from conf.load import to_config
from report.progress import RunProgress
from report.summary import read_result, summary_table
from simulation.errors import EngineError
from simulation.job import Job
from task.errors import TaskError

HERE = Path(__file__).parent
console = Console(highlight=False)


def prepare(config: Config) -> None:
    """Load what the run needs once, here: mistakes show now, and forked workers share it."""
    codec_of(config)
    data = data_of(config)
    model = model_of(config, data)
    optimizer_of(config, list(model.parameters()))
    partition_of(config, data).indices(0)


def quiet(verbose: bool) -> None:
    """Send warnings of ours and Flower's through the console; all of it when `verbose`."""
    level = logging.INFO if verbose else logging.WARNING
    handler = RichHandler(console=console, show_path=False, show_time=False, markup=False)
    for name in ("edgewire", "flwr"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
    warnings.filterwarnings("ignore", message=".*lr_scheduler.step.*")


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(composed: DictConfig) -> None:
    """Run one configuration (one job of a sweep)."""
    config = to_config(composed)
    quiet(config.verbose)
    folder = Path(HydraConfig.get().runtime.output_dir)
    with console.status("loading"):
        prepare(config)
    values = run_config(composed, output=str(folder))
    job = Job(HERE, values, config.nodes, folder, config.seed, config.network)
    with RunProgress(folder, config.rounds, console):
        instantiate(config.engine)(job)
    console.print(summary_table(read_result(folder), folder))


def one_line(error: BaseException) -> str:
    """Return an error's message as one line, Hydra's lists joined by commas."""
    text = str(error)
    text = re.sub(r"\n\nConfig search path:.*", "", text, flags=re.DOTALL)
    text = re.sub(r"\n\s*(full_key|object_type|reference_type)[:=].*", "", text)
    text = re.sub(r"\nSet the environment variable.*", "", text)
    cause = error.__cause__
    if isinstance(error, HydraException) and isinstance(cause, OmegaConfBaseException):
        text += "\n" + str(cause).splitlines()[0]
    text = re.sub(r"\n\t", ", ", text).replace(":, ", ": ")
    return ". ".join(line.strip().rstrip(".") for line in text.splitlines() if line.strip())


if __name__ == "__main__":
    try:
        main()
    except (HydraException, OmegaConfBaseException, ConfigError, TaskError) as error:
        if full_errors:
            raise
        print(f"error: {one_line(error)}", file=sys.stderr)
        sys.exit(2)
    except EngineError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
