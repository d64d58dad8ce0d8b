"""`python run.py compare`: what compression costs on a task, in accuracy, bytes and time.

The same task is trained without compression, with int8 values in both directions, and with few
bytes, with several seeds each. With `goal=` it searches (`edgewire.command.search`).
"""

from __future__ import annotations

import json
import logging
import math
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from edgewire.command.exit import RunFailed
from edgewire.command.python_api import run_sweep
from edgewire.command.run_lock import new_folder
from edgewire.command.run_result import RunResult
from edgewire.command.saved_config import options_first, quoted
from edgewire.conf.load import HERE, compose_config
from edgewire.conf.network import network_named
from edgewire.conf.schema import Config, ConfigError
from edgewire.conf.words import explained
from edgewire.report.comparison import LINK, comparison
from edgewire.report.format import human_seconds
from edgewire.report.metric import ACCURACY, main_of
from edgewire.report.reader import ResultsError, readable
from edgewire.report.runs import failed_line, read_result
from edgewire.report.summary import laid_out, next_lines, trained
from edgewire.task.errors import TaskError

UNCOMPRESSED, FEW_BYTES = "fedavg", "edgewire"
NAMES = {UNCOMPRESSED: "uncompressed", "fedavg_f2i_both": "int8", FEW_BYTES: "few bytes"}
OPTIONS = ("config_path", "config_name", "config_dir")  # of Hydra, which are passed on
ASKED = ("algorithm", "seed", "goal", "minutes", "bytes")  # words that Hydra does not get
OWN = ("nodes", "rounds", "lr", "eval_every")  # words of which each run gets its own
FACTORS = (0.3, 1.0, 3.0)  # of a method's rate, in a search of rates
VALIDATE = ("dataset.validate=0.1",)  # a part of the training set is the test set
RATES = re.compile(r"network=([0-9.]+)/([0-9.]+)")  # Mbit/s down and up
WIDTH = 110  # characters of a line, if no terminal says it
BETWEEN = 20.0  # seconds between two lines about short runs
USAGE = """python run.py compare [OVERRIDES]

Trains the same task without compression, with int8 values in both directions, and with few bytes,
with three seeds each. OVERRIDES choose the task, as for python run.py: task=keywords rounds=10
network=NAME   takes another link than lora: a name, or Mbit/s down and up, as in network=10/1
algorithm=A,B  compares other presets with the uncompressed one
seed=0,1       takes other seeds
--config-dir   names the folder with your own choices, as for python run.py

goal=accuracy:0.9 network=lora  searches the method that reaches it soonest; minutes=5: in less time
goal=within:1                   searches the fewest bytes within 1 point (or 3 % of an error or a
                                perplexity) of uncompressed; bytes=up: the fewest bytes up"""
OWN_DATA = "python run.py compare task=table dataset.root=FILE.csv dataset.target=COLUMN"


@dataclass(frozen=True)
class Method:
    """A preset with its learning rate as text, and the length of its runs.

    `words`: further overrides. `pushes`: whether it is asynchronous. `every`: rounds between two
    evaluations.
    """

    name: str
    lr: str = ""
    words: tuple[str, ...] = ()
    pushes: bool = False
    rounds: int = 1
    every: int = 1

    def __str__(self) -> str:
        shown = f"{NAMES[self.name]} ({self.name})" if self.name in NAMES else self.name
        return " ".join([shown, *(word for word in self.words if "validate" not in word)])

    def overrides(self, nodes: int, seed: int) -> list[str]:
        """Return the overrides of a run."""
        unit, length = (nodes, "strategy.pushes") if self.pushes else (1, "rounds")
        return [
            *(f"algorithm={self.name}", *self.words, f"lr={self.lr}", f"nodes={nodes}"),
            *(f"{length}={self.rounds * unit}", f"eval_every={self.every * unit}", f"seed={seed}"),
        ]


class Asked:
    """What the words of the command line ask for. Raises `ConfigError`.

    `options`: Hydra's. `task`: overrides of the task. `network`: overrides of the link, `link`: its
    name. `given`: the values of `ASKED` and `OWN`, by key. `seeds`: of a method's runs.
    """

    def __init__(self, words: Sequence[str]) -> None:
        parsed, _ = options_first(list(words))
        taken = (*OPTIONS, "overrides")
        if others := [key for key, each in vars(parsed).items() if each and key not in taken]:
            raise ConfigError(f"compare has no option --{others[0]}: --help lists what it has")
        self.folders = {key: found for key in OPTIONS if (found := getattr(parsed, key))}
        pairs = [(f"--{key.replace('_', '-')}", found) for key, found in self.folders.items()]
        self.options = [word for pair in pairs for word in pair]
        self.task, self.network, self.link = list[str](), list[str](), ""
        self.given: dict[str, str] = {}
        try:
            found = OverridesParser.create().parse_overrides(parsed.overrides)
        except HydraException as error:
            raise ConfigError(explained(error, parsed.overrides)) from error
        for each in found:
            word, key = str(each.input_line), each.key_or_group
            value = word.partition("=")[2]
            if each.is_sweep_override() and key not in ASKED:
                raise ConfigError(f"{word} has several values: compare takes one task")
            if key in (*ASKED, *OWN):
                self.given[key] = value
            elif key.partition(".")[0] == "network":
                self.link = value if key == "network" else self.link or "the network"
                self.network.append(word)
                if pair := RATES.fullmatch(word):
                    down, up = (f"network.{way}_mbps=" for way in ("down", "up"))
                    self.network[-1:] = ["network=ideal", down + pair[1], up + pair[2]]
            else:
                self.task.append(word)
        seeds = self.given.get("seed", "0,1,2")
        if not re.fullmatch(r"\d+(,\d+)*", seeds):
            raise ConfigError(f"seed={seeds}: give numbers with commas between them: seed=0,1,2")
        self.seeds = list(dict.fromkeys(map(int, seeds.split(","))))
        if OmegaConf.get_type(self.base) is not Config:
            raise ConfigError("compare takes a task, not a saved configuration: give its words")

    def compose(self, *words: str, task: bool = True) -> DictConfig:
        """Return the configuration of words, and of the task and the link. Raises `ConfigError`."""
        own, search = [*self.task, *self.network] if task else [], []
        if folder := self.folders.get("config_dir"):
            search = [f"hydra.searchpath=[{quoted(f'file://{Path(folder).absolute()}')}]"]
        place = Path(self.folders.get("config_path", HERE)).absolute()
        name = self.folders.get("config_name", "config")
        try:
            return compose_config([*own, *words, *search], folder=place, name=name)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(explained(error, [*self.options, *own, *words])) from error

    @cached_property
    def base(self) -> DictConfig:
        """The configuration of `FEW_BYTES`; all methods have its nodes and rounds."""
        own = [f"{key}={self.given[key]}" for key in OWN if key in self.given]
        return self.compose(f"algorithm={FEW_BYTES}", *own)

    @property
    def is_known(self) -> bool:
        """Whether the presets' rates suit the task: it is ours, or `lr=` was given.

        Data from the user's files, and data or models of the user's code, are not ours.
        """
        targets = [str(self.base[group].get("_target_")) for group in ("dataset", "model")]
        ours = all(each == "None" or each.startswith("edgewire.") for each in targets)
        return "lr" in self.given or (ours and not self.base.dataset.root)

    def methods(self, default: Iterable[str]) -> list[Method]:
        """Return the presets to compare, the uncompressed one first, with their rates.

        A rate is the given one, else the preset's own, else the task's.
        """
        chosen = self.given["algorithm"].split(",") if "algorithm" in self.given else default
        rate = self.given.get("lr") or f"{self.compose(f'algorithm={UNCOMPRESSED}').lr:.4g}"
        lengths, found = (int(self.base.rounds), int(self.base.eval_every)), []
        for name in dict.fromkeys([UNCOMPRESSED, *chosen]):
            preset = self.compose(f"algorithm={name}", task=False)
            own = cast(dict[str, Any], OmegaConf.to_container(preset))["lr"]
            lr = f"{own:.4g}" if isinstance(own, float) and "lr" not in self.given else rate
            found.append(Method(name, lr, (), "pushes" in preset.strategy, *lengths))
        return found

    def at_rates(self, method: Method) -> list[Method]:
        """Return a method at several rates; the few bytes' rule and a given rate stay alone."""
        if method.name == FEW_BYTES or "lr" in self.given:
            return [method]
        rates = [f"{float(method.lr) * factor:.3g}" for factor in FACTORS]
        return [replace(method, lr=rate) for rate in rates]


class Runs:
    """Makes runs of methods in a new folder, and prints lines about them.

    `title`: the end of the line that says what is trained. `failed`: a line for each failed run.
    """

    def __init__(self, asked: Asked, console: Console, title: str = "") -> None:
        self.asked, self.console, self.title = asked, console, title
        self.folder, self.failed = Path(new_folder("multirun")), list[str]()

    def print(self, *lines: object) -> None:
        """Print texts as they are, and tables."""
        for line in lines:
            self.console.print(line, markup=False)

    def make(
        self, name: str, methods: Iterable[Method], seeds: Sequence[int], every: float = BETWEEN
    ) -> dict[Method, list[RunResult]]:
        """Make the runs; return those that have finished or diverged, in the order of the seeds.

        `name`: of their folder. `every`: seconds between two lines. Raises `ResultsError` if all
        runs fail, and `RunFailed` if none begins.
        """
        asked, began, last, done = self.asked, time.monotonic(), time.monotonic(), 0
        jobs = list(product(seeds, dict.fromkeys(methods)))
        cases = [shlex.join(each.overrides(int(asked.base.nodes), seed)) for seed, each in jobs]

        def ended(folder: Path) -> None:
            nonlocal done, last
            seed, method = jobs[int(folder.name)]
            done, now = done + 1, time.monotonic()
            result = readable(read_result, folder) or {}
            if result and self.title and not {*VALIDATE} & {*method.words}:
                self.print(f"{task_of(result, folder)}{self.title}")
                self.title = ""
            if now - last < every:
                return
            last, left = now, round((now - began) / done * (len(jobs) - done))
            metric = main_of(result)
            value = metric.text(result.get(metric.name)) if result else failed_line(folder)
            rest = f" (about {human_seconds(left)} left)" if done < len(jobs) else ""
            self.print(f"run {done} of {len(jobs)} is done: {method}, seed {seed}: {value}{rest}")

        words = [*asked.options, "hydra/sweeper=cases", *asked.task, *asked.network]
        words += ["hydra.sweeper.params=null"]  # those of an experiment
        words += [f"hydra.sweep.dir={quoted(str(self.folder / name))}"]
        logging.disable(logging.WARNING)  # a rate that is too high has many
        try:
            found = run_sweep([*words, f"hydra.sweeper.cases={json.dumps(cases)}"], ended=ended)
        finally:
            logging.disable(logging.NOTSET)
        results: dict[Method, list[RunResult]] = {}
        for run in found:
            results.setdefault(jobs[int(run.folder.name)][1], []).append(run)
            found.failed.pop(run.folder, None)  # it has diverged
        if not found:
            raise ResultsError(next(iter(found.failed.values()), "no run has finished"))
        for folder, line in found.failed.items():
            if (text := f"{jobs[int(folder.name)][1]}: {line}") not in self.failed:
                self.failed.append(text)
        return results

    def with_best_rates(self, methods: Sequence[Method]) -> list[Method]:
        """Return the methods, each with the best of several rates after a third of the rounds.

        Of equal rates it is the middle one. A method without a value stays as it is.
        """
        if "lr" in self.asked.given:
            return [*methods]
        self.print("the learning rates are searched first, in short runs")
        rates = {each: self.asked.at_rates(each) for each in methods if each.name != FEW_BYTES}
        rounds = max(2, methods[0].rounds // 3)
        short = {
            each: replace(each, words=VALIDATE, rounds=rounds) for each in chain(*rates.values())
        }
        done = self.make("rates", short.values(), self.asked.seeds[:1])

        def order(method: Method) -> tuple[float, bool]:
            worths = [worth(run) for run in done.get(short[method], [])]
            return min(worths, default=math.inf), method not in methods

        return [min(rates[each], key=order) if each in rates else each for each in methods]


def worth(run: RunResult) -> float:
    """Return the main metric, by which the least is best; infinity without a value."""
    metric = main_of(run.values)
    value = None if run.diverged else run.values.get(metric.name)
    return math.inf if value is None else value * (-1 if metric.higher else 1)


def compare(words: Sequence[str]) -> int:
    """Make the runs and print what they say; return the exit code.

    `words`: as in `USAGE`.
    """
    if {"-h", "--help"} & set(words):
        print(USAGE)
        return 0
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = WIDTH
    try:
        asked = Asked(words)
        if "goal" in asked.given:
            from edgewire.command.search import search  # it imports this module

            return search(asked, console)
        return _compare(asked, console)
    except (RunFailed, ConfigError, TaskError, ResultsError) as error:
        console.print(f"error: {error}", markup=False)
        return 2
    except KeyboardInterrupt:
        return 130


def _compare(asked: Asked, console: Console) -> int:
    if beside := [key for key in ("minutes", "bytes") if key in asked.given]:
        raise ConfigError(f"{beside[0]}= goes with goal=, as in goal=accuracy:0.9 network=lora")
    methods, seeds = asked.methods(NAMES), asked.seeds
    rounds = f"{methods[0].rounds} round{'s' * (methods[0].rounds > 1)}"
    title = f", {rounds} · {len(methods)} methods x {len(seeds)} seeds"
    runs = Runs(asked, console, title)
    methods = methods if asked.is_known else runs.with_best_rates(methods)
    done = runs.make("runs", methods, seeds, every=0)
    found = {each: done.get(each, []) for each in methods}
    named = {str(method): [run.as_run() for run in made] for method, made in found.items()}
    every = list(chain(*done.values()))
    runs.print(comparison(named, str(methods[0]), asked.link), *notes(every, asked))
    runs.print(*runs.failed)
    goal = shlex.join([*asked.options, *asked.task, "goal=within:1"])
    nexts = {
        f"python -m edgewire.report {shlex.quote(str(runs.folder / 'runs'))}": "all pictures",
        OWN_DATA: "your own data",
        f"python run.py compare {goal}": "fewest bytes, no loss",
    }
    if asked.task:
        del nexts[OWN_DATA]
    runs.print(*next_lines({"": ""}, *nexts.items()))
    return 1 if runs.failed or any(run.diverged for run in every) else 0


def task_of(result: Mapping[str, Any], folder: Path) -> str:
    """Return what a run trains, without its method."""
    return trained(result, folder).rpartition(" · ")[0]


def notes(runs: Sequence[RunResult], asked: Asked) -> list[str]:
    """Return lines that say what ± means, what the bytes are of, and whether updates failed."""
    seeds, test, one = len(asked.seeds), runs[0].values.get("data", {}).get("test"), ""
    if test and main_of(runs[0].values) == ACCURACY:
        one = f"; one test sample is {100 / test:.2g} points"
    lines = f"±: 95 % interval over {seeds} seeds{one}. " if seeds > 1 else ""
    lora = network_named(LINK)
    link = f"{1000 * (lora.up_mbps or 0):g} kbit/s, {lora.latency_ms / 1000:g} s"
    failed, used = (sum(run.values[k] for run in runs) for k in ("failures", "client_updates"))
    updates = f"no update failed in all runs: {used:,} were used"
    if failed:
        updates = f"{failed:,} of {used + failed:,} updates failed: the report says at which nodes"
    lines += f"All bytes of {int(asked.base.nodes)} nodes." + f" {LINK}: {link}." * (not asked.link)
    return [lines, *laid_out({"nodes": updates})]
