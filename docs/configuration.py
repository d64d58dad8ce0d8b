"""Writes docs/configuration.md, which lists every group, choice and option, from the code.

Run `python -m docs.configuration`. A test fails if the page differs from this module's output. The
page's introduction is written by hand.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from dataclasses import MISSING, Field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from omegaconf import OmegaConf

from docs.text import sentence, summary, told, wrap
from edgewire.compression.registry import STAGES, get, names, option_fields
from edgewire.compression.screening import Screening
from edgewire.conf.load import HERE, compose_config
from edgewire.conf.network import DeviceClass, Network
from edgewire.conf.privacy import Privacy
from edgewire.conf.schema import CompressionConfig, Config, DatasetConfig, ModelConfig
from edgewire.report.runs import as_text, dotted

PAGE = Path(__file__).with_name("configuration.md")
COMMAND = "python -m docs.configuration"
BEGIN = "## The run"  # the page is generated from this line on
SCHEMAS: dict[str, type] = {
    "dataset": DatasetConfig,
    "model": ModelConfig,
    "network": Network,
    "privacy": Privacy,
}
CUT = (
    "If the layers of a model are divided among nodes (`strategy=synthetic_gradients` or "
    "`strategy=split_backprop`), the group `compression` applies to the activations that nodes "
    "send. `compression@gradients=CHOICE` and `gradients.OPTION` apply to the gradients of these "
    "activations."
)
CHANGES = (
    "`downlink` has all options of `compression`, and also `downlink.changes` and "
    "`downlink.from_seed`. "
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
VALUES = (
    "compression",
    "downlink",
    "model",
    "network",
    "privacy",
    "secure",
)  # choices without a class
KINDS = {bool: "true or false", int: "integer", float: "number", str: "text", type(None): "null"}
ABSURD: dict[type, Any] = {int: -(10**9), float: -1e9, str: "?"}  # always refused


def page() -> str:
    """Return the text of docs/configuration.md."""
    chosen = compose_config([], hydra=True).hydra.runtime.choices
    without = {*_groups(), "gradients", "screen"}  # these have separate tables
    intro = PAGE.read_text().partition(BEGIN)[0]
    lines = [*intro.splitlines(), BEGIN, "", *_schema("", Config, without)]
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
            lines += ["", *wrap(CHANGES)]
        lines += ["", *_choices(group, group, chosen.get(group))]
        for folder in sorted(path for path in (HERE / group).iterdir() if path.is_dir()):
            inner = f"{group}/{folder.name}"
            if any(folder.glob("*.yaml")):
                lines += ["", f"### {inner}", ""]
                lines += _choices(inner, f"{group}.{folder.name}", chosen.get(inner))
    return "\n".join(lines) + "\n"


def _groups() -> dict[str, str]:
    """Return each group and its description, in the order of `python run.py --help`."""
    template = str(_load(HERE / "hydra/help/edgewire.yaml")["template"])
    listed = template.split("Groups\n")[1].split("\n\n")[0]
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
    # as on the command line, and without what it raises
    about = re.sub(r"\s*Raises\s`\w+` for [^.]*\.$", "", (inspect.getdoc(schema) or "").strip())
    about = re.sub(r"\bNone\b", "null", about)
    return lines if about.startswith(f"{schema.__name__}(") else [*lines, *told(about)]


def _default(field: Field[Any]) -> str:
    if field.default is not MISSING:
        return f"`{as_text(field.default)}`"
    return "none" if field.default_factory is MISSING else f"`{as_text(field.default_factory())}`"


def _allowed(schema: type, kind: Any, field: Field[Any]) -> str:
    if "one_of" in field.metadata:
        return ", ".join(f"`{choice}`" for choice in field.metadata["one_of"])
    if field.default is not MISSING and not field.metadata:
        return _accepted(schema, field)
    said = _kind(kind)
    for key, words in (
        ("at_least", "at least"),
        ("above", "above"),
        ("at_most", "at most"),
        ("below", "below"),
    ):
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
                option = f"`compression.{field.name}={as_text(field.default)}`"
                rows.append(f"| {name} | {option} | {_accepted(method, field)} |")
        if rows:
            lines += ["", "| method | option and default | must be |", "|---|---|---|", *rows]
    return lines


def _accepted(schema: type, field: Field[Any]) -> str:
    """Return the accepted values, from the error message for a value that the class refuses."""
    if "one_of" in field.metadata:
        return " or ".join(map(str, field.metadata["one_of"]))
    kind = get_type_hints(schema)[field.name]
    optional = get_origin(kind) in (Union, UnionType) and NoneType in get_args(kind)
    plain = [each for each in (get_args(kind) if optional else (kind,)) if each in ABSURD]
    try:
        schema(**{field.name: ABSURD[plain[0]]})
    except ValueError as refusal:
        if found := re.search(r" must be (?:a number (?:of )?)?(.*), not ", str(refusal)):
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
        words = " ".join(
            f"{key}={as_text(value)}" for key, value in preset(path.stem, group).items()
        )
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
    return groups | values | dict(dotted(content))


def _choices(group: str, prefix: str, default: str | None) -> list[str]:
    """Return one list item for each file of a group, with its options."""
    lines = [*wrap(f"The default run has `{group}={default}`."), ""] if default else []
    named = inspect.getdoc(SCHEMAS[group]) or "" if group in SCHEMAS else ""
    for path in sorted((HERE / group).glob("*.yaml")):
        content, notes = _load(path), _notes(path)
        inside = re.match(rf"# @package ({group}\.\w+|_global_)\n", path.read_text())
        owner = inside[1] if inside else prefix
        text = f"`{path.stem}`: {sentence(re.sub(r' Use with -m.*', '', _head(path)))}"
        if group == "experiment":
            lines += wrap(text, "* ", "  ")
            continue
        bases = [_base(group, entry) for entry in content.pop("defaults", []) if entry != "_self_"]
        target = content.pop("_target_", None)
        for key in ("_partial_", "name"):
            content.pop(key, None)
        options = dict(dotted(content))
        plain = [key for key in options if key not in notes or group in VALUES]
        if group == "dataset":
            plain = []  # the table lists the data sets' options
        every = [f"{owner}.{key}={as_text(options[key])}" for key in plain]
        words = [each.removeprefix("_global_.") for each in every]
        lines += wrap(text, "* ", "  ")
        sets = [*bases, *([f"`{' '.join(words)}`"] if words else [])]
        kind = "Class" if target and target.rpartition(".")[2][0].isupper() else "Function"
        about = f"{kind} `{target}`. " if target else ""
        if sets:
            about += f"{'Sets' if group in VALUES else 'Options:'} {', and '.join(sets)}."
        lines += wrap(about, "  ", "  ") if about else []
        for key, note in notes.items():
            if key in options and key not in plain and f"`{key}`" not in named:
                shown = f"`{owner}.{key}={as_text(options[key])}`"
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


if __name__ == "__main__":
    PAGE.write_text(page())
