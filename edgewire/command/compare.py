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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from edgewire.command.exit import CALLER
from edgewire.command.from_data import from_data
from edgewire.command.job import prepare, set_up_logging
from edgewire.command.python_api import run_sweep
from edgewire.command.saved_config import BESIDE_OF, composed_from, options_first
from edgewire.conf.load import typed
from edgewire.conf.network import network_named
from edgewire.conf.own_packages import look_in
from edgewire.conf.schema import Config, ConfigError
from edgewire.conf.words import explained
from edgewire.report.comparison import LINK, ONE_SEED, UNCLEAR, comparison
from edgewire.report.link_time import RADIOS
from edgewire.report.reader import ResultsError
from edgewire.report.runs import Run, by_seed, main_metric, run_of
from edgewire.report.summary import WIDTH, is_no_better, laid_out, next_lines, shown, trained
from edgewire.task.metric import ACCURACY, LOSS

UNCOMPRESSED, FEW_BYTES = "fedavg", "edgewire"
NAMES = {UNCOMPRESSED: "uncompressed", "fedavg_f2i_both": "int8", FEW_BYTES: "few bytes"}
SWEEP_DIR = "hydra.sweep.dir"
# words that Hydra does not get
ASKED = ("algorithm", "seed", "goal", "minutes", "bytes", SWEEP_DIR)
OWN = ("nodes", "rounds", "lr")  # words of which each run gets its own
FACTORS = (1.0, 0.3, 3.0)  # of a method's rate, in a search; of equal ones the first
VALIDATE = "dataset.validate=0.1"  # a part of the training set is the test set
RATES = re.compile(r"network=([0-9.]+)/([0-9.]+)")  # Mbit/s down and up
USAGE = """python run.py compare [OVERRIDES] [--config-dir DIR]         (more in docs/sweeps.md)

Trains a task, chosen as for python run.py, without compression, with int8 values, and with few
bytes. network=lora, or network=10/1 (Mbit/s down and up); algorithm=A,B: other presets
shorter: rounds=5, and fewer seeds: seed=0,1
goal=accuracy:0.9 network=lora   what reaches it soonest; minutes=5: searched in less time
goal=within:1                    the fewest bytes within 1 point (or 3 %); bytes=up: bytes up"""
OWN_DATA = "python run.py compare task=table dataset.root=FILE.csv dataset.target=COLUMN"


@dataclass(frozen=True)
class Method:
    """A preset with its learning rate as text, and further words.

    `pushes`: whether it is asynchronous.
    """

    name: str
    lr: str = ""
    words: tuple[str, ...] = ()
    pushes: bool = False

    def __str__(self) -> str:
        shown = f"{NAMES[self.name]} ({self.name})" if self.name in NAMES else self.name
        return " ".join([shown, *self.words])


class Comparison:
    """What the words of the command line ask for, and the runs of methods in a new folder.

    `options`: Hydra's. `task`: overrides of the task and of the link, `link`: its name. `given`:
    the values of `ASKED` and `OWN`, by key; `kept`: all words but `ASKED`. `seeds`: of a method's
    runs. `base`: the configuration of the uncompressed method; all have the `nodes` and `rounds` of
    the few bytes. `failed`: a line for each method that failed. Raises `ConfigError`.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.parsed, ordered = options_first([*words])
        overrides = self.parsed.overrides
        self.options, self.failed = ordered[: -len(overrides) or None], dict[str, None]()
        self.task, self.link, self.given = list[str](), "", dict[str, str]()
        self.kept = [*self.options]
        self.sweeps = 0  # that were begun
        for each in OverridesParser.create().parse_overrides(overrides):
            word, key = str(each.input_line), each.key_or_group
            value = word.partition("=")[2]
            if key in BESIDE_OF:
                raise ConfigError(f"compare takes no {key}=: it trains new models")
            if each.is_sweep_override() and key not in ASKED:
                raise ConfigError(f"{word} has several values: compare takes one task")
            self.kept += [word] * (key not in ASKED)
            if key in (*ASKED, *OWN):
                self.given[key] = value
                continue
            if key.partition(".")[0] == "network":
                self.link = value if key == "network" else self.link or "the network"
            if pair := RATES.fullmatch(word):
                word = f"network={{down_mbps:{pair[1]},up_mbps:{pair[2]}}}"
            self.task.append(word)
        seeds = self.given.get("seed", "0,1,2")
        if not re.fullmatch(r"\d+(,\d+)*", seeds):
            raise ConfigError(f"seed={seeds}: give numbers with commas between them: seed=0,1,2")
        self.seeds = [*dict.fromkeys(map(int, seeds.split(",")))]
        own = [*self.task, *(f"{key}={self.given[key]}" for key in OWN if key in self.given)]
        few = self.compose(*own, f"algorithm={FEW_BYTES}")
        if OmegaConf.get_type(few) is not Config:
            raise ConfigError("compare takes a task, not a saved configuration: give its words")
        self.nodes, self.rounds = int(few.nodes), int(few.rounds)
        own += [f"nodes={self.nodes}", f"rounds={self.rounds}"]
        self.base = self.compose(*own, f"algorithm={UNCOMPRESSED}")

    def compose(self, *words: str) -> DictConfig:
        """Return the configuration of words. Raises `ConfigError`."""
        try:
            return composed_from(self.parsed, words)
        except (HydraException, OmegaConfBaseException) as error:
            raise ConfigError(explained(error, [*self.options, *words])) from error

    @cached_property
    def config(self) -> Config:
        """`base`, typed, with what it leaves to the data."""
        folder = self.parsed.config_dir
        look_in([*([Path(folder).absolute().parent] if folder else []), Path.cwd()])
        with TemporaryDirectory() as place:  # for a survey; each run asks the nodes again
            return typed(from_data(self.base, Path(place), self.task))

    @cached_property
    def title(self) -> str:
        """The data, the model and the nodes. Raises `TaskError` for a task that cannot train."""
        set_up_logging(verbose=False)
        root = str(self.base.dataset.root or "null")
        return trained(run_of(Path(), prepare(self.config)), root).rpartition(" · ")[0]

    @property
    def is_known(self) -> bool:
        """Whether the task is ours, so that the presets' rates suit it.

        Data from the user's files, and data or models of the user's code, are not ours.
        """
        targets = [str(self.base[group].get("_target_")) for group in ("dataset", "model")]
        ours = all(each == "None" or each.startswith("edgewire.") for each in targets)
        return ours and not self.base.dataset.root

    def methods(self, default: Iterable[str]) -> list[Method]:
        """Return the presets to compare, the uncompressed one first, with their rates.

        A rate is the given one, else the preset's own, else the task's.
        """
        chosen = self.given["algorithm"].split(",") if "algorithm" in self.given else default
        found = []
        for name in dict.fromkeys([UNCOMPRESSED, *chosen]):
            preset = self.compose(f"algorithm={name}")
            own = "lr" not in self.given and not OmegaConf.is_interpolation(preset, "lr")
            lr = f"{(preset if own else self.base).lr:.4g}"
            found.append(Method(name, lr, (), "pushes" in preset.strategy))
        return found

    def at_rates(self, method: Method) -> list[Method]:
        """Return a method at several rates; the few bytes' rule and a given rate stay alone."""
        if method.name == FEW_BYTES or "lr" in self.given:
            return [method]
        return [replace(method, lr=f"{float(method.lr) * factor:.3g}") for factor in FACTORS]

    def with_best_rates(self, methods: Sequence[Method]) -> list[Method]:
        """Return the methods, each with the best of several rates after a third of the rounds.

        Of equal ones the loss decides, and of rates with equal losses it is the method's own.
        """
        if "lr" in self.given:
            return [*methods]
        rates = [self.at_rates(each) for each in methods]
        say(f"first {len({*chain(*rates)})} short runs search the learning rates")
        done = self.make(chain(*rates), self.seeds[:1], self.rounds // 3, VALIDATE)

        def order(method: Method) -> tuple[float, float]:
            runs = [run for run in done.get(method, []) if not run.diverged]
            metric = main_metric(runs)
            names = ((metric.name, -1 if metric.higher else 1), (LOSS[0], 1))
            values = [by_seed(runs, *each).values() for each in names]
            return min(values[0], default=math.inf), min(values[1], default=math.inf)

        return [min(each, key=order) for each in rates]

    def overrides(self, method: Method, rounds: int = 0) -> list[str]:
        """Return the overrides of a method's runs, but nodes and seed; 0: all rounds."""
        rounds = max(2, rounds) if rounds else self.rounds
        length = [f"rounds={rounds}"]
        if method.pushes:
            length = [f"strategy.pushes={rounds * self.nodes}", f"eval_every={self.nodes}"]
        return [f"algorithm={method.name}", *method.words, f"lr={method.lr}", *length]

    def make(
        self, methods: Iterable[Method], seeds: Iterable[int], rounds: int = 0, *words: str
    ) -> dict[Method, list[Run]]:
        """Make the runs; return those that have finished or diverged, in the order of the seeds.

        `rounds`: as in `overrides`; `words`: of all runs. Raises `ResultsError` if all runs fail,
        and `RunFailed` if none begins.
        """
        jobs = [*product(seeds, dict.fromkeys(methods))]
        cases = [shlex.join([*self.overrides(each, rounds), f"seed={s}"]) for s, each in jobs]
        own = ["hydra/sweeper=cases", "hydra.sweeper.params=null"]  # in place of an experiment's
        own += [*words, f"nodes={self.nodes}", f"hydra.sweeper.cases={json.dumps(cases)}"]
        self.sweeps += 1
        if SWEEP_DIR in self.given:  # each sweep numbers its runs from 0 on
            own.append(f"{SWEEP_DIR}={self.given[SWEEP_DIR]}/{self.sweeps}")
        CALLER.searching = bool(rounds or words)
        logging.disable(logging.WARNING)  # a rate that is too high has many
        try:
            found = run_sweep([*self.options, *self.task, *own], shell=True)
        finally:
            CALLER.searching = False
            logging.disable(logging.NOTSET)
        results: dict[Method, list[Run]] = {}
        for run in found:
            results.setdefault(jobs[int(run.folder.name)][1], []).append(run.run)
            found.failed.pop(run.folder, None)  # it has diverged
        if not found:
            raise ResultsError(next(iter(found.failed.values()), "no run has finished"))
        for job, line in found.failed.items():
            self.failed[f"{jobs[int(job.name)][1]}: {line}"] = None
        return results


def say(*lines: object) -> None:
    """Print texts as they are, and tables."""
    console = Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = 2 * WIDTH  # no terminal says it; a table that is wider is cut
    for line in lines:
        console.print(line, markup=False)


def compare(words: Sequence[str], search: Callable[[Comparison], int]) -> int:
    """Make the runs and print what they say; return the exit code.

    `words`: as in `USAGE`; `search`: for what `goal=` asks. Raises `ConfigError`, `TaskError`,
    `RunFailed` and `ResultsError`.
    """
    if {"-h", "--help"} & {*words}:
        print(USAGE)
        return 0
    asked = Comparison(words)
    if "goal" in asked.given:
        return search(asked)
    if beside := [key for key in ("minutes", "bytes") if key in asked.given]:
        raise ConfigError(f"{beside[0]}= goes with goal=, as in goal=accuracy:0.9 network=lora")
    methods = asked.methods(NAMES)
    size = f"{len(methods) * len(asked.seeds)} runs of {len(methods)} methods"
    say(f"{asked.title}, {asked.rounds} round{'s' * (asked.rounds > 1)} · {size}")
    methods = methods if asked.is_known else asked.with_best_rates(methods)
    found = asked.make(methods, asked.seeds)
    done = [*chain(*found.values())]
    folder = cast(Path, done[0].folder).parent
    named = {str(each): found.get(each, []) for each in methods}
    table = comparison(named, str(methods[0]), asked.link)
    said = {str(cell).rpartition(": ")[2] for each in table.columns for cell in each.cells}
    say(table, *notes(done, asked, UNCLEAR in said), *asked.failed)
    again = f"python run.py compare {shlex.join(asked.kept)}".strip()
    seeds = ",".join(map(str, range(max(10, 2 * len(asked.seeds)))))
    chosen = f" algorithm={asked.given.get('algorithm')}" * ("algorithm" in asked.given)
    nexts = {f"python -m edgewire.report {shlex.quote(str(shown(folder)))}": "all pictures"}
    if {UNCLEAR, ONE_SEED} & said:
        nexts[f"{again}{chosen} seed={seeds}"] = "more seeds"
    if asked.is_known:
        nexts[OWN_DATA] = "your own data"
    nexts[f"{again} goal=within:1"] = "fewest bytes, no loss"
    say(*next_lines({"": ""}, *nexts.items()))
    return 1 if asked.failed or any(run.diverged for run in done) else 0


def notes(runs: Sequence[Run], asked: Comparison, unclear: bool) -> list[str]:
    """Return lines that say what ±, `unclear` and bytes mean, and whether updates failed."""
    seeds, test, link = len(asked.seeds), runs[0].result.get("data", {}).get("test"), asked.link
    rows = {"±": f"95 % interval over {seeds} seeds" if seeds > 1 else "one seed has no interval"}
    if test and runs[0].metric == ACCURACY:
        rows["±"] += f"; one test sample is {100 / test:.2g} points"
    if unclear:
        rows[UNCLEAR] = "the interval is too wide to tell a loss from none: more seeds can tell"
    if bad := sum(is_no_better(run.result, run.metric) for run in runs):
        what = f"{bad} of {len(runs)} runs are no better than a constant answer"
        rows["check"] = f"{what}: more rounds=, lr= or objective.class_weights=balanced may help"
    rows["bytes"] = f"all of {asked.nodes} nodes"
    if not link:
        lora = network_named(LINK)
        rows["bytes"] += f"; {LINK}: {1000 * (lora.up_mbps or 0):g} kbit/s, {lora.latency_ms:g} ms"
    if radio := RADIOS.get(link or LINK):
        rows["bytes"] += f"; energy of a node's radio: {radio.source}"
    failed, used = (sum(run.result[k] for run in runs) for k in ("failures", "client_updates"))
    rows["nodes"] = f"no update failed in all runs: {used:,} were used"
    if failed:
        count = f"{failed:,} of {used + failed:,}"
        rows["nodes"] = f"{count} updates failed: the report says at which nodes"
    return laid_out(rows)
