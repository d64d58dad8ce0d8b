"""Checks a command of a page without running it: its overrides, its options, its program."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import io
import os
import re
import runpy
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from docs.commands import Command

ROOT = Path(__file__).parents[1]
COMPOSED, PARSED, LISTED = "composed", "parsed", "listed"  # kinds of checks
GOAL = re.compile(r"goal=\w+:[\d.]+")
OF_COMPARE = ("goal=", "minutes=", "bytes=")  # words of `compare` that are no overrides
JOBS = 8  # of a sweep, at most, are composed
SECONDS = 120  # a module's import and its parser need less
# modules whose only arguments are the overrides of a run; they add these to their `SETTINGS`
OVERRIDES_ONLY = ("papers.benchmarks.index_sets",)
OPTIONS_OF = {"simulation": "edgewire.simulation.any_app.main"}  # imported under another name
DOWNLOADS = "downloads packages; the names of extras are checked"
SHELL = "a shell's own: only its name is checked"
REASONS = {
    "ssh": "needs another machine",
    **dict.fromkeys(("mlflow", "tensorboard", "wandb"), "another project's program"),
    "sudo": "changes the system",
    "git": "downloads this project",
    "pip": DOWNLOADS,
    "uv": DOWNLOADS,
    **dict.fromkeys(
        (
            *(".", "cd", "cp", "exit", "export", "find", "grep", "head", "jobs", "kill", "ls"),
            *("mkdir", "mktemp", "pkill", "printf", "rm", "set", "sleep", "source", "trap", "wait"),
        ),
        SHELL,
    ),
}
MODULES = {"venv": "Python's own module", "pytest": "another project's module"}


class Wrong(Exception):
    """A command of a page is wrong; the message is one line."""


class Checked(NamedTuple):
    """How a command was checked; if it is only listed, the reason and the program."""

    kind: str
    reason: str = ""
    program: str = ""


def check(command: Command) -> Checked:
    """Check a command without running it. Raises `Wrong` for a mistake in it."""
    program, *arguments = command.words
    if program in ("python", "python3"):
        return _check_python(arguments, command.partial)
    if program == "make":
        return _check_make(arguments)
    if program.startswith(("flwr", "flower-")):
        return _check_flower(command.words)
    if program not in REASONS:
        raise Wrong(
            f"{program} is no program that this check knows (docs/check_without_running.py)"
        )
    if program in ("pip", "uv"):
        _expect_extras(arguments)
    if REASONS[program] == SHELL and not _in_shell(program):
        raise Wrong(f"{program} is no command of the shell")
    return Checked(LISTED, REASONS[program], program)


@cache
def _in_shell(program: str) -> bool:
    return subprocess.run(["bash", "-c", 'type "$0"', program], capture_output=True).returncode == 0


def _check_python(arguments: Sequence[str], partial: bool) -> Checked:
    if arguments[:1] == ["run.py"]:
        return check_run(arguments[1:])
    if arguments[:1] != ["-m"] or len(arguments) < 2:
        raise Wrong(f"python {' '.join(arguments[:1])}: only run.py and -m MODULE are known")
    module, rest = arguments[1], arguments[2:]
    if module in MODULES:
        return Checked(LISTED, MODULES[module], f"python -m {module}")
    if module in OVERRIDES_ONLY:
        return check_run([*importlib.import_module(module).SETTINGS, *rest])
    return check_options(module, rest, partial)


# python run.py


def check_run(words: Sequence[str]) -> Checked:
    """Compose the configuration of a run, or of some jobs of a sweep, and check its values.

    Raises `Wrong` for the first mistake.
    """
    from edgewire.command import saved_config
    from edgewire.command.main import COMPARE, EXPORT, PREDICT
    from edgewire.command.new_task import NEW
    from edgewire.command.saved_config import BESIDE, RESUME, START, options_first

    if words[:1] == [NEW]:
        if len(words) != 2:
            raise Wrong(f"run.py {NEW} takes one name")
        return Checked(PARSED)
    if words[:1] == [PREDICT]:
        return _expect_use(words, 3)
    if words[:1] == [EXPORT]:
        return _expect_use(words, 3, 4)
    if words[:1] == [COMPARE]:  # it makes a sweep of its overrides
        if wrong := [w for w in words if w.startswith("goal=") and not GOAL.fullmatch(w)]:
            raise Wrong(f"{wrong[0]}: it must be METRIC:VALUE or within:VALUE")
        words = ["--multirun", *(w for w in words[1:] if not w.startswith(OF_COMPARE))]
    if words[:1] and words[0].startswith(f"{START}="):  # the others change RUN's configuration
        words = words[1:]
    # `continue=` continues a sweep, where this version has it.
    for key in (RESUME, getattr(saved_config, "CONTINUE", RESUME)):
        if any(word.startswith(f"{key}=") for word in words):
            beside = (f"{key}=", *(BESIDE if key == RESUME else vars(saved_config)["BESIDE_SWEEP"]))
            if wrong := [word for word in words if not word.startswith(beside)]:
                raise Wrong(f"{wrong[0]} does not go with {key}=")
            return Checked(PARSED)
    try:
        given, _ = options_first(list(words))
        if given.config_dir:
            raise Wrong(
                "a folder of the user's own configuration is not here: a test has to run it"
            )
        if given.config_path:
            return Checked(LISTED, "needs a folder that a run or a program has written", "run.py")
        for job in _jobs(given.overrides, given.multirun):
            _compose(job)
    except Wrong:
        raise
    except Exception as error:  # Hydra, OmegaConf and the checks raise a dozen types
        raise Wrong(str(error).strip().splitlines()[0]) from error
    return Checked(COMPOSED)


def _expect_use(words: Sequence[str], *counts: int) -> Checked:
    """Check `predict RUN FILE` or `export RUN FORMAT [FILE]`, which have `counts` words."""
    from edgewire.command.main import EXPORT
    from edgewire.task.export import ENDS

    plain = [word for word in words if not word.startswith("--")]
    if len(plain) not in counts:
        raise Wrong(f"run.py {words[0]} takes {counts[0] - 1} words, not {len(plain) - 1}")
    if plain[0] == EXPORT and plain[2] not in ENDS:
        raise Wrong(f"no format {plain[2]}; there are: {', '.join(ENDS)}")
    return Checked(PARSED)


def _jobs(words: Sequence[str], sweep: bool) -> list[list[str]]:
    """Return the overrides of a run, or of the first jobs of a sweep, without Hydra's own."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    from edgewire.conf.load import HERE
    from edgewire.conf.sweeper import jobs_of

    overrides = [word for word in words if not re.match(r"[+~]*hydra[./]", word)]
    if not sweep:
        return [overrides]
    line = OverridesParser.create().parse_overrides(overrides)
    name = next((each.value() for each in line if each.key_or_group == "experiment"), None)
    if name is not None and not (HERE / "experiment" / f"{name}.yaml").is_file():
        raise Wrong(f"there is no experiment={name}")
    file = OmegaConf.load(HERE / "experiment" / f"{name}.yaml") if name else OmegaConf.create()
    sweeper: Any = OmegaConf.to_container(OmegaConf.select(file, "hydra.sweeper") or file)
    jobs = jobs_of(sweeper, line)
    return jobs[:: max(len(jobs) // JOBS, 1)][:JOBS]


def _compose(overrides: Sequence[str]) -> None:
    from edgewire.conf.check import check_targets
    from edgewire.conf.load import compose_config, typed

    # A file of the user's own is not here.
    known = [word for word in overrides if not word.lstrip("+").startswith("model.file=")]
    check_targets(typed(compose_config(known)))


# python -m MODULE


class _Parsed(BaseException):
    """The options were parsed; no code of the program catches this exception."""


def check_options(module: str, arguments: Sequence[str], partial: bool = False) -> Checked:
    """Let a module of the project parse its options, in a process of its own, and stop it then.

    `partial`: required options may be missing. Raises `Wrong` for a module that does not exist, and
    for options that its parser refuses.
    """
    texts = _sources(module)
    if not re.search(r"\.parse_(known_)?args\(", "".join(texts)):
        if arguments:
            raise Wrong(f"python -m {module} takes no options")
        return Checked(LISTED, "takes no options, and minutes", f"python -m {module}")
    if line := _in_a_process(lambda: _parse(module, arguments, partial)):
        raise Wrong(line)
    return Checked(PARSED)


def _sources(module: str) -> list[str]:
    """Return the source of the module that `python -m` runs, and of that of its `main`."""
    try:
        found = importlib.util.find_spec(module)
        if found is not None and found.submodule_search_locations is not None:
            found = importlib.util.find_spec(f"{module}.__main__")
    except ModuleNotFoundError:
        found = None
    if found is None or found.origin is None or not Path(found.origin).is_relative_to(ROOT):
        raise Wrong(f"there is no module {module} in the project")
    text = Path(found.origin).read_text()
    texts = [text]
    if other := OPTIONS_OF.get(module):
        texts += _sources(other)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and "main" in [each.name for each in node.names]:
            name = importlib.util.resolve_name(
                f"{'.' * node.level}{node.module}", found.name.rpartition(".")[0]
            )
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.origin is not None:
                texts.append(Path(spec.origin).read_text())
    return texts


def _parse(module: str, arguments: Sequence[str], partial: bool) -> str:
    """Return the line of the parser's error; "" if it takes the arguments."""
    depth = 0

    def stopping(parse: Callable[..., Any]) -> Callable[..., Any]:
        def parsed(parser: argparse.ArgumentParser, *given: Any, **named: Any) -> Any:
            nonlocal depth
            depth += 1
            for action in parser._actions:
                action.required = action.required and not partial
            found = parse(parser, *given, **named)
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
    return "it never reads its options"


def _in_a_process(work: Callable[[], str]) -> str:
    """Return the text of a function that runs in a fork of this process."""
    read, write = os.pipe()
    if not (child := os.fork()):
        try:
            text = work()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode()[:4000])
        os._exit(0)
    os.close(write)
    end = time.monotonic() + SECONDS
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > end:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return f"its options were not parsed in {SECONDS} s"
        time.sleep(0.02)
    with os.fdopen(read, "rb") as pipe:
        return pipe.read().decode()


# Other programs


def _check_make(arguments: Sequence[str]) -> Checked:
    # `make` would make the environment, which the Makefile names as an old file here.
    words = ["make", "--dry-run", "--old-file=.venv/ready", *arguments]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise Wrong(done.stderr.strip().splitlines()[-1])
    return Checked(PARSED)


def _check_flower(words: Sequence[str]) -> Checked:
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
    return Checked(PARSED)


@cache
def _help(words: tuple[str, ...]) -> str:
    """Return the help text of a program in this environment."""
    program = shutil.which(words[0], path=f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}")
    if program is None:
        raise Wrong(f"{words[0]} is not installed")
    wide = {**os.environ, "COLUMNS": "200", "TERMINAL_WIDTH": "200", "NO_COLOR": "1"}
    done = subprocess.run(
        [program, *words[1:], "--help"], capture_output=True, text=True, env=wide, timeout=SECONDS
    )
    if done.returncode:
        raise Wrong(f"{' '.join(words)}: there is no such command")
    return done.stdout + done.stderr


def _expect_extras(arguments: Sequence[str]) -> None:
    """Raise `Wrong` for a package of this project with an extra that it lacks."""
    for word in arguments:
        found = re.fullmatch(r"(\.\S*?|edgewire)\[([\w,-]+)\]", word)
        if found is None:
            continue
        folder = ROOT / ("compression" if found[1] == "edgewire" else found[1])
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        known = project.get("optional-dependencies", {})
        if unknown := [each for each in found[2].split(",") if each not in known]:
            raise Wrong(f"{word}: there is no extra {unknown[0]}")
