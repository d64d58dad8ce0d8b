"""Writes docs/configuration.md, which lists every group, choice and option, from the code.

Run `python -m docs.configuration`. A test fails if the page differs from this module's output.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from docs.text import sentence, summary, told, word, wrap
from edgewire.compression.registry import STAGES, get, names, option_fields
from edgewire.compression.screening import Screening
from edgewire.conf.load import HERE
from edgewire.conf.network import DeviceClass, Network
from edgewire.conf.schema import (
    CompressionConfig,
    Config,
    DatasetConfig,
    DownlinkConfig,
    ModelConfig,
)

PAGE = Path(__file__).with_name("configuration.md")
COMMAND = "python -m docs.configuration"
SCHEMAS: dict[str, type] = {
    "dataset": DatasetConfig,
    "model": ModelConfig,
    "network": Network,
}
CUT = (
    "If the layers of a model are divided among nodes (`strategy=synthetic_gradients` or "
    "`strategy=split_backprop`), the group `compression` applies to the activations that nodes "
    "send. `compression@gradients=CHOICE` and `gradients.OPTION` apply to the gradients of these "
    "activations."
)
CHANGES = (
    "With `downlink.changes=true` the server sends a node the change of the model since the node's "
    "version; with false it sends the whole model. With `downlink.from_seed=true` the server does "
    "not send the model before training. Each node makes it from `seed`."
)
STEPS = """
`sparsifier`: the method that chooses the entries of an update that a node sends.
`quantizer`: the method that reduces the bits of each entry.
`coder`: the method that compresses the resulting bytes without loss.
`feedback`: if true, a node adds the error of the compression to its next update (error feedback);
null: only the quantizers that need error feedback use it.
`exact`: patterns of tensor names, such as `["head.*"]`; these tensors are sent as float32.
`residual_decay`: a factor from 0 to 1 by which a node multiplies what it has not sent yet, before
it adds its next update; null: 1.
`exact_steps`: the values of the first so many updates are sent as float32; null: 0.
"""
PRESETS = ("algorithm", "task")  # groups whose files set options of other groups
VALUES = ("compression", "downlink", "model", "network")  # choices without a class
KINDS = {bool: "true or false", int: "integer", float: "number", str: "text", type(None): "null"}
ABSURD: dict[type, Any] = {int: -(10**9), float: -1e9, str: "?"}  # always refused
INTRO = f"""
<!-- Written by `{COMMAND}`: edit the code, not this page. -->
# Configuration

This page lists every group and option of `python run.py`. It is generated from the code.

* `GROUP=CHOICE` selects one of a group's choices: `strategy=fedadam`,
  `strategy/optimizer=momentum`.
* `KEY=VALUE` sets an option: `nodes=20`, `compression.density=0.01`.
* `+KEY=VALUE` sets an option that this page does not list, but that the group's class has:
  `+optimizer.amsgrad=true`.
* With `-m`, values separated by commas make a sweep: `python run.py -m seed=0,1,2`.
* `hydra.run.dir=FOLDER` sets the folder for the results.
* `--config-path RUN/.hydra --config-name config` repeats the run whose results are in the folder
  `RUN`.
* A wrong name or value is refused. The error message is one line and lists the valid names or
  values.

```
python run.py algorithm=fedavg_f2i                      # int8 updates, compressed with zstd
python run.py algorithm=edgewire                        # few bytes; fidelity=low sends fewer
python run.py algorithm=esgd compression.drop=0.875     # 4 nodes, 2,000 rounds of one gradient each
python run.py algorithm=adacomp                         # asynchronous, 200 nodes
python run.py algorithm=synthetic_gradients             # one model, its layers on four nodes
python run.py task=keywords compression=topk            # keyword spotting, sparse updates
python run.py algorithm=dgc dataset=mnist dataset.download=true model=lenet5
python run.py compression=topk compression.density=0.02 downlink=f2i    # compresses both directions
python run.py strategy=fedadam compression=f2i partition=dirichlet partition.alpha=0.3
python run.py dataset=imagefolder dataset.root=$HOME/photos model=resnet18 local_steps=20
python run.py network=adsl                              # simulates ADSL links
```

An option on the command line overrides a preset (`algorithm=`). A preset overrides the defaults of
the groups. [algorithms.md](algorithms.md) explains each compression method and its options.
[glossary.md](glossary.md) defines words such as update, delta, residual and replica.
"""


def page() -> str:
    """Return the text of docs/configuration.md."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(HERE), version_base="1.3"):
        chosen = compose("config", return_hydra_config=True).hydra.runtime.choices
    without = {*_groups(), "gradients", "screen"}  # these have separate tables
    lines = [*INTRO.strip().splitlines(), "", "## The run", "", *_schema("", Config, without)]
    lines += ["", "### screen: limits of updates and weights", "", *_schema("screen.", Screening)]
    for group, about in _groups().items():
        lines += ["", f"## {group}", "", *wrap(sentence(about[0].upper() + about[1:]))]
        if group in PRESETS:
            lines += ["", *_presets(group, chosen[group])]
            continue
        if group in SCHEMAS:
            lines += ["", *_schema(f"{group}.", SCHEMAS[group])]
        if group == "network":
            lines += ["", *_schema("network.classes.NAME.", DeviceClass)]
        if group == "compression":
            lines += ["", *_stages(), "", "### compression=CHOICE", "", *wrap(CUT)]
        if group == "downlink":
            own = {f.name for f in fields(DownlinkConfig)} - {
                f.name for f in fields(CompressionConfig)
            }
            words = " and ".join(f"`downlink.{name}`" for name in sorted(own))
            said = f"`downlink` has all options of `compression`, and also {words}. {CHANGES}"
            lines += ["", *wrap(said)]
        lines += ["", *_choices(group, group, chosen.get(group))]
        for folder in sorted(path for path in (HERE / group).iterdir() if path.is_dir()):
            inner = f"{group}/{folder.name}"
            if any(folder.glob("*.yaml")):
                lines += ["", f"### {inner}", ""]
                lines += _choices(inner, f"{group}.{folder.name}", chosen.get(inner))
    return "\n".join(lines) + "\n"


def _groups() -> dict[str, str]:
    """Return each group and its description, in the order of `python run.py --help`."""
    template = OmegaConf.to_container(
        OmegaConf.load(HERE / "hydra/help/edgewire.yaml"), resolve=False
    )
    listed = str(cast(dict[str, Any], template)["template"]).split("Groups\n")[1].split("\n\n")[0]
    found = dict(line.split(maxsplit=1) for line in listed.splitlines())
    folders = sorted(path.name for path in HERE.iterdir() if any(path.glob("*.yaml")))
    return found | {name: name for name in folders if name not in found}


def _schema(prefix: str, schema: type, without: Collection[str] = ("name", "own")) -> list[str]:
    """Return a dataclass's fields as a table, and its docstring below the table."""
    hints = get_type_hints(schema)
    lines = ["| option | default | must be |", "|---|---|---|"]
    for field in fields(schema):
        if field.name not in without:
            allowed = _allowed(schema, hints[field.name], field)
            lines.append(f"| `{prefix}{field.name}` | {_default(field)} | {allowed} |")
    about = _of_options(inspect.getdoc(schema) or "")
    return lines if about.startswith(f"{schema.__name__}(") else [*lines, *told(about)]


def _of_options(about: str) -> str:
    """Return a docstring with null (as on the command line) for None, and without "Raises"."""
    without = re.sub(r"\s*Raises\s`\w+` for [^.]*\.$", "", about.strip())
    return re.sub(r"\bNone\b", "null", without)


def _default(field: Field[Any]) -> str:
    if field.default is not MISSING:
        return f"`{word(field.default)}`"
    return "none" if field.default_factory is MISSING else f"`{word(field.default_factory())}`"


def _allowed(schema: type, kind: Any, field: Field[Any]) -> str:
    if "one_of" in field.metadata:
        return ", ".join(f"`{choice}`" for choice in field.metadata["one_of"])
    if field.default is not MISSING and not field.metadata:
        return _accepted(schema, field)
    said = _kind(kind)
    for key, words in (("at_least", "at least"), ("above", "above"), ("below", "below")):
        if key in field.metadata:
            said += f", {words} {field.metadata[key]:,}"
    return said


def _kind(kind: Any) -> str:
    """Return the English name of a type."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_kind(part) for part in get_args(kind))
    if get_origin(kind) is list:
        return f"list of {_kind(get_args(kind)[0])}"
    return "mapping of names" if get_origin(kind) is dict else KINDS.get(kind, "any")


def _stages() -> list[str]:
    """Return the methods of a codec's three stages, and the options of each method."""
    lines = _schema("compression.", CompressionConfig, {name for name, _, _ in option_fields()})
    lines += told(STEPS)
    for stage in STAGES:
        lines += ["", f"### compression.{stage}", ""]
        rows = []
        for name in names(stage):
            method = get(stage, name)
            lines += wrap(f"`{name}`: {summary(method)}", "* ", "  ")
            for field in fields(cast(Any, method)):
                option = f"`compression.{field.name}={word(field.default)}`"
                rows.append(f"| {name} | {option} | {_accepted(method, field)} |")
        if rows:
            lines += ["", "| method | option and default | must be |", "|---|---|---|", *rows]
    return lines


def _accepted(schema: type, field: Field[Any]) -> str:
    """Return the accepted values, from the error message for a value that the class refuses."""
    kind = get_type_hints(schema)[field.name]
    optional = get_origin(kind) in (Union, UnionType) and NoneType in get_args(kind)
    plain = [each for each in (get_args(kind) if optional else (kind,)) if each in ABSURD]
    try:
        schema(**{field.name: ABSURD[plain[0]]})
    except ValueError as refusal:
        if found := re.search(r" must be (.*), not ", str(refusal)):
            return f"null or {found[1]}" if optional else found[1]
    except (IndexError, TypeError):
        pass
    return _kind(kind)


def _presets(group: str, default: str | None) -> list[str]:
    about = f"The default is `{group}={default}`. " if default else ""
    lines = wrap(f"{about}A preset is a short form for the options that it sets.")
    lines.append("")
    for path in sorted((HERE / group).glob("*.yaml")):
        lines += wrap(f"`{path.stem}`: {sentence(_head(path))}", "* ", "  ")
        words = " ".join(f"{key}={word(value)}" for key, value in preset(path.stem, group).items())
        lines += wrap(f"Sets `{words}`.", "  ", "  ")
    return lines


def preset(name: str, group: str = "algorithm") -> dict[str, Any]:
    """Return what a preset and its base presets set: choices of groups, then options."""
    content = _load(HERE / group / f"{name}.yaml")
    groups: dict[str, Any] = {}
    values: dict[str, Any] = {}
    for entry in content.pop("defaults", []):
        if isinstance(entry, str) and entry != "_self_":
            for key, value in preset(entry, group).items():
                (groups if (HERE / key).is_dir() else values)[key] = value
        elif isinstance(entry, dict):
            groups |= {key.removeprefix("override /"): value for key, value in entry.items()}
    return groups | values | dict(_flat(content))


def _choices(group: str, prefix: str, default: str | None) -> list[str]:
    """Return one list item for each file of a group, with its options."""
    lines = [*wrap(f"The default run has `{group}={default}`."), ""] if default else []
    named = inspect.getdoc(SCHEMAS[group]) or "" if group in SCHEMAS else ""
    for path in sorted((HERE / group).glob("*.yaml")):
        content, notes = _load(path), _notes(path)
        inside = re.match(rf"# @package ({group}\.\w+)\n", path.read_text())
        owner = inside[1] if inside else prefix
        text = f"`{path.stem}`: {sentence(re.sub(r' Use with -m.*', '', _head(path)))}"
        if group == "experiment":
            lines += wrap(text, "* ", "  ")
            continue
        bases = [_base(group, entry) for entry in content.pop("defaults", []) if entry != "_self_"]
        target = content.pop("_target_", None)
        for key in ("_partial_", "name"):
            content.pop(key, None)
        options = dict(_flat(content))
        plain = [key for key in options if key not in notes or group in VALUES]
        if group == "dataset":
            plain = []  # the table lists the data sets' options
        words = [f"{owner}.{key}={word(options[key])}" for key in plain]
        lines += wrap(text, "* ", "  ")
        sets = [*bases, *([f"`{' '.join(words)}`"] if words else [])]
        kind = "Class" if target and target.rpartition(".")[2][0].isupper() else "Function"
        about = f"{kind} `{target}`. " if target else ""
        about += (
            f"{'Sets' if group in VALUES else 'Options:'} {', and '.join(sets)}." if sets else ""
        )
        lines += wrap(about, "  ", "  ") if about else []
        for key, note in notes.items():
            if key in options and key not in plain and f"`{key}`" not in named:
                shown = f"`{owner}.{key}={word(options[key])}`"
                lines += wrap(f"{shown}: {note}", "  * ", "    ")
    return lines


def _base(group: str, entry: Any) -> str:
    """Return the words for an entry of a YAML file's `defaults`: a choice of a group."""
    if isinstance(entry, str):
        return f"{'the options' if group in VALUES else 'those'} of `{entry}`"
    (key, value), *_ = entry.items()
    if key.startswith("/"):
        return f"the options of `{key[1:].split('@')[0]}={value}`"
    return f"`{group}/{key}={value}`"


def _load(path: Path) -> dict[str, Any]:
    return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(path), resolve=False))


def _head(path: Path) -> str:
    """Return a file's first comment, except a directive for Hydra such as `# @package`."""
    comments = re.findall(r"^# (.*)$", path.read_text(), re.MULTILINE)
    return next((line for line in comments if not line.startswith("@")), path.stem)


def _notes(path: Path) -> dict[str, str]:
    """Return key -> comment for the keys of a YAML file that have a comment on their line."""
    found = re.findall(r"^(\w+):[^#\n]*#\s*(.*)$", path.read_text(), re.MULTILINE)
    return {key: sentence(note) for key, note in found}


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


if __name__ == "__main__":
    PAGE.write_text(page())
