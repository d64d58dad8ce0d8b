"""Checks a command of a page without running it: its overrides, its options, its program."""

from __future__ import annotations

import argparse
import io
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from docs.commands import ELLIPSIS, Command

ROOT = Path(__file__).parents[1]
GOAL = re.compile(r"goal=\w+:[\d.]+")
OF_COMPARE = ("goal=", "minutes=", "bytes=")  # words of `compare` that are no overrides
JOBS = 8  # of a sweep, at most, are composed
OURS = ("docs", "edgewire", "papers")  # the packages of this project
# of these programs and modules, and of a shell's own commands, only the names are checked
PROGRAMS = ("git", "mlflow", "pip", "ssh", "sudo", "tensorboard", "uv", "wandb")
MODULES = (
    "venv",
    "pytest",
    "docs.configuration",
    "papers.benchmarks.index_sets",
    "papers.benchmarks.sweeps",
)


class Wrong(Exception):
    """A command of a page is wrong; the message is one line."""


def check(command: Command) -> None:
    """Check a command without running it. Raises `Wrong` for a mistake in it."""
    program, *arguments = command.words
    if ELLIPSIS in arguments:  # it is not whole
        return
    if program in ("python", "python3"):
        _check_python(arguments)
    elif program == "make":
        _check_make(arguments)
    elif program.startswith(("flwr", "flower-")):
        _check_flower(command.words)
    elif program not in PROGRAMS and not _in_shell(program):
        raise Wrong(f"{program} is no program of the shell, nor one in {Path(__file__).name}")
    if program in ("pip", "uv"):
        _expect_extras(arguments)


@cache
def _in_shell(program: str) -> bool:
    return subprocess.run(["bash", "-c", 'type "$0"', program], capture_output=True).returncode == 0


def _check_python(arguments: Sequence[str]) -> None:
    match arguments:
        case ["run.py", *words]:
            check_run(words)
        case ["-m", module, *words]:
            if module not in MODULES:
                check_options(module, words)
        case _:
            raise Wrong(f"python {' '.join(arguments[:1])}: only run.py and -m MODULE are known")


# python run.py


def check_run(words: Sequence[str]) -> None:
    """Compose the configuration of a run, or of some jobs of a sweep, and check its values.

    Raises `Wrong` for the first mistake.
    """
    try:
        _check_run([*words])
    except Wrong:
        raise
    except Exception as error:  # Hydra, OmegaConf and the checks raise a dozen types
        raise Wrong(str(error).strip().splitlines()[0]) from error


def _check_run(words: list[str]) -> None:
    from edgewire.command.saved_config import CONTINUE, RESUME, START, apart, options_first
    from edgewire.command.use import parsed
    from edgewire.conf.check import check_targets
    from edgewire.conf.load import compose_config, typed

    match words:
        case ["new", *names]:
            if len(names) != 1:
                raise Wrong("run.py new takes one name")
            return
        case ["predict" | "export" as word, *rest]:
            parsed(word, rest)
            return
        case ["compare", *rest]:  # it makes a sweep of its overrides
            if wrong := [w for w in rest if w.startswith("goal=") and not GOAL.fullmatch(w)]:
                raise Wrong(f"{wrong[0]}: it must be METRIC:VALUE or within:VALUE")
            words = ["--multirun", *(w for w in rest if not w.startswith(OF_COMPARE))]
    for key in (RESUME, CONTINUE, START):
        if any(each.startswith(f"{key}=") for each in words):
            _, words = apart(key, words)
            if key != START:  # there the others change the configuration of a run
                return
            words = [each for each in words if not each.startswith(("dataset.", "model."))]
    given, _ = options_first(words)
    if given.config_path or given.config_dir:  # a folder that the user or a program has written
        return
    for job in _jobs(given.overrides, given.multirun):
        # A file of the user's own is not here.
        known = [each for each in job if not each.lstrip("+").startswith("model.file=")]
        check_targets(typed(compose_config(known)))


def _jobs(words: Sequence[str], sweep: bool) -> list[list[str]]:
    """Return the overrides of a run, or of the first jobs of a sweep, without Hydra's own."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from edgewire.conf.load import compose_config
    from edgewire.conf.sweeper import jobs_of

    overrides = [word for word in words if not re.match(r"[+~]*hydra[./]", word)]
    if not sweep:
        return [overrides]
    experiment = [word for word in overrides if word.startswith("experiment=")]
    line = OverridesParser.create().parse_overrides(overrides)
    jobs = jobs_of(compose_config(experiment, hydra=True).hydra.sweeper, line)
    return jobs[:: max(len(jobs) // JOBS, 1)][:JOBS]


# python -m MODULE


class _Parsed(BaseException):
    """The options were parsed; no code of the program catches this exception."""


def check_options(module: str, arguments: Sequence[str]) -> None:
    """Let a module of the project parse its options, in a fork of this process, and stop it then.

    Raises `Wrong` for a module that does not exist, and for options that its parser refuses.
    """
    if module.partition(".")[0] not in OURS:
        raise Wrong(f"there is no module {module} in the project")
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        if line := pool.submit(_parse, module, arguments).result():
            raise Wrong(line)


def _parse(module: str, arguments: Sequence[str]) -> str:
    """Return the line of the parser's error; "" if it takes the arguments."""
    depth = 0

    def stopping(parse: Callable[..., Any]) -> Callable[..., Any]:
        def parsed(*given: Any, **named: Any) -> Any:
            nonlocal depth
            depth += 1
            found = parse(*given, **named)
            depth -= 1
            if not depth:  # a parser of a subcommand, or `parse_args`, calls the other method
                raise _Parsed
            return found

        return parsed

    for name in ("parse_args", "parse_known_args"):
        method = getattr(argparse.ArgumentParser, name)
        setattr(argparse.ArgumentParser, name, stopping(method))
    for name in (module, f"{module}.__main__"):
        sys.modules.pop(name, None)  # runpy warns of a module that is imported already
    sys.argv = [module, *arguments]
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except _Parsed:
        return ""
    except SystemExit:
        lines = said.getvalue().strip().splitlines() or ["it ends before it reads its options"]
        return lines[-1]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "it never reads its options"


# Other programs


def _check_make(arguments: Sequence[str]) -> None:
    # `make` would make the environment, which the Makefile names as an old file here.
    words = ["make", "--dry-run", "--old-file=.venv/ready", *arguments]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Wrong(done.stderr.strip().splitlines()[-1])


def _check_flower(words: Sequence[str]) -> None:
    """Check that a program of Flower has the options, and that EdgeWire takes the overrides."""
    count = 1 + (words[0] == "flwr") + (words[1:2] == ("supernode",))
    text = _help(tuple(words[:count]))
    options = [word.partition("=")[0] for word in words[count:] if word.startswith("--")]
    if unknown := [each for each in options if not re.search(rf"{each}(?![\w-])", text)]:
        raise Wrong(f"{' '.join(words[:count])} has no option {unknown[0]}")
    for option, value in pairwise(words):
        if option == "--run-config":
            table = tomllib.loads("\n".join(re.findall(r"[\w-]+=(?:\"[^\"]*\"|\S+)", value)))
            check_run(str(table.get("overrides", "")).split())


@cache
def _help(words: tuple[str, ...]) -> str:
    """Return the help text of a program in this environment."""
    program = shutil.which(words[0], path=f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}")
    if program is None:
        raise Wrong(f"{words[0]} is not installed")
    wide = {**os.environ, "COLUMNS": "200", "TERMINAL_WIDTH": "200", "NO_COLOR": "1"}
    done = subprocess.run([program, *words[1:], "--help"], capture_output=True, text=True, env=wide)
    if done.returncode:
        raise Wrong(f"{' '.join(words)}: there is no such command")
    return done.stdout + done.stderr


def _expect_extras(arguments: Sequence[str]) -> None:
    """Raise `Wrong` for a package of this project with an extra that it lacks."""
    extras = re.compile(r"(\.\S*?|edgewire)\[([\w,-]+)\]")
    for found in filter(None, map(extras.fullmatch, arguments)):
        folder = ROOT / ("compression" if found[1] == "edgewire" else found[1])
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        known = project.get("optional-dependencies", {})
        if unknown := [each for each in found[2].split(",") if each not in known]:
            raise Wrong(f"{found[0]}: there is no extra {unknown[0]}")
