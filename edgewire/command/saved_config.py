"""Saved configurations of earlier runs: how to run one again, and how to resume a run.

`--config-path RUN/.hydra --config-name config` runs the configuration of a run folder again.
`resume=RUN` continues a run from its checkpoint, with the same configuration in the same folder.
`start=RUN` trains the model of a run on, with the same configuration, in a new folder.
`continue=SWEEP` starts a sweep again with the same overrides in the same folder.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, cast

from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf, open_dict

from edgewire.conf.check import PROTECTIONS
from edgewire.conf.load import HERE as CONF
from edgewire.conf.load import compose_config
from edgewire.conf.schema import Config, ConfigError, declared
from edgewire.machine.job import PLACE
from edgewire.report.runs import HYDRA, path_of
from edgewire.strategy.run.checkpoint_file import FILE as CHECKPOINT
from edgewire.strategy.run.checkpoint_file import expect
from edgewire.task.model_file import MODEL
from edgewire.task.override_text import quoted, with_quotes

# Python 3.14 checks help texts, and would refuse Hydra 1.3 for one that is no text.
setattr(ArgumentParser, "_check_help", lambda parser, action: None)  # noqa: B010
# Hydra's settings in conf/config.yaml. The file that Hydra saves does not contain them.
SETTINGS = (
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
    "hydra.output_subdir=null",
    "hydra.run.dir=${new_folder:outputs}",
    "hydra.sweep.dir=${new_folder:multirun}",
    "+hydra.callbacks.sweep_end._target_=edgewire.command.sweep.SweepEnd",
)


OF_HYDRA = HYDRA / "hydra.yaml"  # in a run's folder: Hydra's own settings
CONFIG_DIR = "command-line"  # Hydra's name for the source of configuration that `--config-dir` adds
LOGGER = "logger"  # the group of which a run may have several choices
RESUME = "resume"  # the override's key; also the name of Hydra's job in a resumed run
START = "start"  # the key of a word with the run whose model a new run trains on
CONTINUE = "continue"  # the override's key; also the name of Hydra's jobs in a continued sweep
# overrides that `resume=` and `continue=` allow
BESIDE = ("engine.", "logger=", "logger.", "+logger.", "verbose=", "checkpoint_every=")
FILES = ("dataset.root=", "model.file=")  # a resumed run may find its files at other paths
# what the words that name a folder allow beside them
BESIDE_OF = {
    CONTINUE: (*BESIDE, "stop_on_failure=", "hydra/launcher=", "hydra.launcher."),
    RESUME: (*BESIDE, *FILES),
    START: ("",),
}


def resumes() -> bool:
    """Return whether this job resumes a run, alone or in a sweep that is continued."""
    hydra = HydraConfig.get()
    if continues():
        return any(
            (Path(hydra.runtime.output_dir) / name).is_file() for name in (CHECKPOINT, PLACE)
        )
    return bool(hydra.job.name == RESUME)


def continues() -> bool:
    """Return whether this job belongs to a sweep that is continued."""
    return bool(HydraConfig.get().job.name == CONTINUE)


def continuing(argv: list[str]) -> list[str]:
    """Return Hydra's command line for the command line `argv`, which contains `continue=SWEEP`.

    It has the overrides that Hydra has saved in the sweep's folder. Raises `ConfigError` as
    `apart`, and for a folder without a sweep.
    """
    argv = [word for word in argv if word not in ("-m", "--multirun")]
    folder, others = apart(CONTINUE, argv)
    try:
        saved = _hydras(folder / "multirun.yaml")
        before = [*saved["overrides"]["hydra"], *saved["overrides"]["task"]]
        sources = {each["provider"]: each["path"] for each in saved["runtime"]["config_sources"]}
        name = str(saved["job"]["config_name"])
    except Exception as error:  # YAML's and OmegaConf's readers raise a dozen types
        raise ConfigError(
            f"continue={folder}: there is no sweep: its multirun.yaml cannot be read"
        ) from error
    given = {_key(word) for word in others} | {"hydra.sweep.dir", "hydra.job.name", "hydra.mode"}
    kept = [word for word in before if _key(word) not in given]
    if "hydra/launcher" in given:  # another launcher has other options
        kept = [word for word in kept if not _key(word).startswith("hydra.launcher.")]
    own = [f"hydra.sweep.dir={quoted(str(folder))}", f"hydra.job.name={CONTINUE}"]
    options = ["-m", *_config_dir(folder / "multirun.yaml")]
    if sources.get("main", str(CONF)) != str(CONF):
        options += ["--config-path", sources["main"], "--config-name", name]
    return [*options, *kept, *others, *own]


def apart(key: str, argv: list[str]) -> tuple[Path, list[str]]:
    """Return the folder that `key` names in a command line, and the other words.

    Raises `ConfigError` for a word that `BESIDE_OF` does not allow, and for another number of
    values than one.
    """
    found = [word.partition("=")[2] for word in argv if word.startswith(f"{key}=")]
    others = [word for word in argv if not word.startswith(f"{key}=")]
    for word in others:
        if not word.startswith(BESIDE_OF[key]):
            raise ConfigError(
                f"{word} does not go with {key}=, which keeps the configuration; only words that "
                f"begin with {', '.join(BESIDE_OF[key])} do"
            )
    if len(found) > 1 or not found[0]:
        of = "sweep, such as multirun" if key == CONTINUE else "run, such as outputs"
        raise ConfigError(f"{key}= takes the folder of one {of}/DATE/TIME")
    return _folder(found[0]).absolute(), others


def _folder(text: str) -> Path:
    """Return the folder in a word of the command line, which may have quotes as Hydra's values."""
    quoted_too = len(text) > 1 and text[0] == text[-1] and text[0] in ("'", '"')
    return Path(text[1:-1] if quoted_too else text).expanduser()


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _hydras(file: Path) -> Any:
    """Return the settings that Hydra saved in a file. Their texts are not resolved here."""
    return OmegaConf.to_container(OmegaConf.load(file))["hydra"]  # type: ignore[call-overload,index]


def started_in(argv: list[str]) -> Path:
    """Return the working directory of the run or sweep that `argv` resumes or continues.

    The relative paths of its configuration, and its packages, are looked up there. For any other
    command line, and if that folder is gone, it is today's working directory.
    """
    files: dict[str, Path | str] = {RESUME: OF_HYDRA, START: OF_HYDRA, CONTINUE: "multirun.yaml"}
    for key, _, folder in (word.partition("=") for word in argv):
        with suppress(Exception):  # another word, or a folder that `again` refuses
            found = Path(_hydras(_folder(folder) / files[key])["runtime"]["cwd"])
            if found.is_dir():
                return found
    return Path.cwd()


def own_folders(composed: DictConfig, folder: Path) -> list[Path]:
    """Return the folders in which a job's packages are looked up; `folder`: the job's."""
    dirs = (Path(each).parent for each in config_dirs(HydraConfig.get().runtime))
    before = own_folders_of(Path(composed.model.file)) if composed.model.get("file") else []
    return [*dirs, *path_of(folder), *before, Path.cwd()]


def own_folders_of(run: Path) -> list[Path]:
    """Return the folders in which a run's packages are looked up (`look_in`), and today's folder.

    `run`: the run's folder, or its model's file.
    """
    folder = (run if run.is_dir() else run.parent).resolve()
    given = [Path(word).parent for word in _config_dir(folder / OF_HYDRA)[1:]]
    found = [*given, *path_of(folder), started_in([f"{START}={folder}"])]
    # what lies in the run's folder, or in one that has no whole path, may be somebody else's
    mine = (p for p in found if p.is_absolute() and not p.resolve().is_relative_to(folder))
    return [*mine, Path.cwd()]


def again(key: str, argv: list[str]) -> list[str]:
    """Return Hydra's command line for the command line `argv`, which contains `key`=RUN.

    `key`: RESUME, to go on in RUN's folder; or START, for a new run with RUN's configuration that
    begins with its model. Raises `ConfigError` as `apart`, for a run that cannot be resumed, and
    for a folder without a configuration.
    """
    folder, others = apart(key, argv)
    _expect_keys(others)
    words = [*map(_from_here, others)]
    if key == START:
        own = [f"model.file={quoted(str(folder / MODEL))}", "model.sha256=null", "++model.new=null"]
        # a class of the user's own may have more options than RUN's command gave
        words = [f"{'++' * word.startswith(('dataset.', 'model.'))}{word}" for word in words]
    else:
        if not (folder / PLACE).is_file():  # if the file exists, the checkpoint is at a SuperLink
            expect(folder)
        own = [f"hydra.run.dir={quoted(str(folder))}", f"hydra.job.name={RESUME}"]
    saved = ["--config-path", str(folder / HYDRA), "--config-name", "config"]
    return command_line([*saved, *own, *words])


def _from_here(word: str) -> str:
    """Return an override; the path of one of `FILES` is absolute, unless it has references."""
    if not word.startswith(FILES) or "${" in word:
        return word
    path = cast(str | None, OverridesParser.create().parse_override(word).value())
    return f"{_key(word)}={quoted(str(Path(path).expanduser().absolute()))}" if path else word


def with_loggers(words: list[str]) -> list[str]:
    """Return overrides of a saved configuration, with `logger=` as the JSON text of its choices.

    In a saved file Hydra knows no groups, and would not replace a mapping by a list of names. A run
    of an earlier version has saved no key `logger`. So the overrides get `++`.
    """
    own = [word for word in words if word.lstrip("+").startswith((f"{LOGGER}=", f"{LOGGER}."))]
    others = [word for word in words if word not in own]
    if not any(word.startswith(f"{LOGGER}=") for word in own):
        return [*others, *(f"++{word.lstrip('+')}" for word in own)]
    chosen = json.dumps(OmegaConf.to_container(compose_config(own)[LOGGER]))
    return [*others, f"++{LOGGER}={quoted(chosen)}"]


def _config_dir(file: Path) -> list[str]:
    """Return the option `--config-dir` of a run's command, from the settings that Hydra saved.

    The run's packages may lie beside that folder. Returns [] if the option was not given, or if the
    folder is gone.
    """
    with suppress(Exception):  # the file is gone, or it is not Hydra's
        for found in config_dirs(_hydras(file)["runtime"]):
            return ["--config-dir", found] if Path(found).is_dir() else []
    return []


def config_dirs(runtime: Any) -> list[str]:
    """Return the folders of `--config-dir` in Hydra's settings `hydra.runtime`."""
    return [each["path"] for each in runtime["config_sources"] if each["provider"] == CONFIG_DIR]


def command_line(argv: list[str]) -> list[str]:
    """Return Hydra's command line for the user's command line `argv`.

    A relative `--config-path` is relative to the working directory, as users expect. In Hydra it
    would be relative to the module of the task function. Raises `ConfigError`.
    """
    for key in BESIDE_OF:
        if any(word.startswith(f"{key}=") for word in argv):
            return continuing(argv) if key == CONTINUE else again(key, argv)
    given, argv = options_first(argv)
    if given.config_path is None or "://" in given.config_path:
        return argv
    folder = Path(given.config_path).absolute()
    if not (folder / f"{given.config_name or 'config'}.yaml").is_file():
        raise ConfigError(f"there is no {folder / (given.config_name or 'config')}.yaml")
    saved = (folder / "overrides.yaml").is_file() and (folder / "hydra.yaml").is_file()
    there = _config_dir(folder / "hydra.yaml") if saved and given.config_dir is None else ()
    argv = with_loggers(argv) if saved else argv
    argv = options_first([*SETTINGS, *argv])[1] if saved else argv
    return [*argv, "--config-path", str(folder), *there]


def options_first(argv: list[str]) -> tuple[Namespace, list[str]]:
    """Return Hydra's parsed options, and the command line with all options first.

    Hydra refuses an option between two overrides: `nodes=2 -m seed=0,1`. Texts with letters that it
    cannot read get quotes. Raises `ConfigError` for an unknown option.
    """
    argv = [*map(with_quotes, argv)]
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ConfigError(
            f"{message}; python run.py --help lists the keys, --hydra-help the options"
        )

    setattr(parser, "error", refuse)  # noqa: B010  # argparse would print ten lines
    given = parser.parse_intermixed_args(argv)
    options = list(argv)
    for word in given.overrides:
        options.remove(word)
    return given, [*options, *given.overrides]


def composed_from(given: Namespace, words: Iterable[str], *, hydra: bool = False) -> DictConfig:
    """Compose overrides with the folders and the file that options of the command line name.

    `given`: Hydra's parsed options; `hydra`: as in `compose_config`.
    """
    own = given.config_dir and quoted(f"file://{Path(given.config_dir).absolute()}")
    search = [f"hydra.searchpath=[{own}]"] if own else []
    folder, name = Path(given.config_path or CONF).absolute(), given.config_name or "config"
    return compose_config([*words, *search], hydra=hydra, folder=folder, name=name)


def _expect_keys(words: Iterable[str]) -> None:
    """Raise `ConfigError` for a choice of a group among overrides of a saved configuration."""
    for word in words:
        key, _, value = word.lstrip("+~").partition("=")
        if key != LOGGER and (CONF / key).is_dir():
            single = f"{key}.{PROTECTIONS[key][0]}={value}" if key in PROTECTIONS else "lr=0.1"
            said = f"a saved configuration takes single keys, as in {single}, and keeps its choices"
            raise ConfigError(f"{word}: {said}")


def completed(composed: DictConfig) -> DictConfig:
    """Return a configuration merged with its schema; a saved one has Hydra's text of `logger=`.

    In a saved file Hydra knows no groups: an override such as `network=adsl` would replace the keys
    of `network` by the text `adsl`. Raises `ConfigError` for such a choice.
    """
    if OmegaConf.get_type(composed) is Config:
        return composed
    _expect_keys(HydraConfig.get().overrides.task)
    values = cast(dict[str, Any], OmegaConf.to_container(composed))  # a choice is not resolved
    if isinstance(choice := values.get(LOGGER), str):
        with open_dict(composed):
            composed[LOGGER] = json.loads(choice)
    return cast(DictConfig, OmegaConf.merge(declared(), composed))
