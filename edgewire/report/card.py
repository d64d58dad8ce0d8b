"""The model card of a run, `README.md`: what was trained on what, how good it is, and its limits.

Its head is YAML as the Hugging Face Hub reads it (`huggingface_hub.ModelCard`). That library is not
needed here: its import would take longer than the whole card.
"""

from __future__ import annotations

import json
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgewire.report.format import markdown_table, one_line
from edgewire.report.metric import LOSS, MainMetric, main_of
from edgewire.report.node_table import nodes_of
from edgewire.report.reader import readable, reading
from edgewire.report.runs import Row, number, read_overrides, read_result, run_of
from edgewire.report.summary import NAME, answers, trained
from edgewire.task.errors import TaskError

CARD = "README.md"
SHOWN = 100  # classes, columns and nodes of which a card has a row each
PATHS = ("dataset.root", "model.file")
# objective and kind of samples -> the Hub's name of the task; for any kind: ""
TASKS = {
    ("Classification", "images"): "image-classification",
    ("Classification", "rows"): "tabular-classification",
    ("Classification", "texts"): "text-classification",
    ("Regression", "rows"): "tabular-regression",
    ("NextToken", ""): "text-generation",
    ("Segmentation", ""): "image-segmentation",
}
USE = """```python
from edgewire import load_model
model = load_model("{folder}")  # the folder with model.safetensors
model.predict("{source}")  # a table: {answer}
```"""
LIMITS = """* The values above are of test samples from the same source as the training samples.
  Measure the model on your own samples before you rely on it.
* A class, a group or a node with few samples may fare worse than the mean.
* Nothing hides what single samples have taught the model: federated training keeps samples at
  their nodes, and is no proof of privacy."""


def write_card(folder: Path) -> None:
    """Write the model card of a run into its folder.

    Raises `ResultsError` for a folder without a result or with damaged files, and `OSError`.
    """
    with reading(folder):
        text = card(read_result(folder), folder)
    (folder / CARD).write_text(text, encoding="utf-8")


def card(result: Row, folder: Path) -> str:
    """Return the card of a run: `result`: the content of its `result.json`."""
    import yaml  # type: ignore[import-untyped]  # imported here: a command without runs needs none

    data = result.get("data") or {}
    sections = {
        "Classes": _classes(result),
        "Columns": _columns(folder),
        "Nodes": _nodes(result, folder),
    }
    kind = str(data.get("kind", ""))
    task = TASKS.get((str(result["objective"]), kind)) or TASKS.get((str(result["objective"]), ""))
    source = {"images": "FOLDER or PHOTO", "rows": "FILE.csv"}.get(kind, "FILE.npz")
    answer = "class and probability" if result.get("class_names") else "the model's answers"
    parts = [
        f"---\n{yaml.safe_dump(_head(result, task), sort_keys=False, allow_unicode=True)}---",
        f"# {_text(result['model'])} on {_text(result['dataset'])}",
        _text(trained(result, folder), 200) + ".",
        "## Use",
        USE.format(folder=folder.name, source=source, answer=answer),
        "Or `python run.py predict` and `python run.py export` with this folder.",
        "## Results",
        _results(result, folder),
        *(f"## {head}\n\n{text}" for head, text in sections.items() if text),
        "## How it was made",
        _made(result, folder),
        f"## Limits\n\n{LIMITS}",
    ]
    return "\n\n".join(parts) + "\n"


def _head(result: Row, task: str | None) -> dict[str, Any]:
    """Return the card's values for programs; the license is `other` until its owner gives one."""
    name = f"{result['dataset']}-{result['model']}"
    metrics = {**(result.get("metrics") or {}), "loss": None}
    values = {each: number(result.get(each)) for each in metrics}
    found = [{"type": each, "value": value} for each, value in values.items() if value is not None]
    about = {"name": str(result["dataset"]), "type": str(result["dataset"])}
    shown = {"task": {"type": task or "other"}, "dataset": about, "metrics": found}
    return {
        "license": "other",
        "library_name": "edgewire",
        **({"pipeline_tag": task} if task else {}),
        "tags": ["edgewire", "federated-learning", "pytorch", "safetensors"],
        "model-index": [{"name": name, "results": [shown]}] if found else [],
    }


def _text(value: object, longest: int = NAME) -> str:
    """Return a text from elsewhere on one line, without Markdown's signs."""
    return one_line(str(value), longest).translate(
        {ord(sign): f"\\{sign}" for sign in "\\`*_[]<>|#"}
    )


def _results(result: Row, folder: Path) -> str:
    kinds = {**(result.get("metrics") or {}), "loss": LOSS._asdict()}
    rows = []
    for name, each in kinds.items():
        if (value := number(result.get(name))) is not None:
            kind = MainMetric(name, bool(each.get("higher")), bool(each.get("share")))
            always = number((result.get("constant") or {}).get(name))
            rows.append([_text(name), kind.text(value), kind.text(always)])
    told = answers(result, folder)
    lines = [f"* {_text(key)}: {_text(told[key], 300)}" for key in told if key != "files"]
    table = markdown_table(["metric", "value", "a constant answer"], rows, 2) if rows else ""
    return "\n\n".join(each for each in (table, "\n".join(lines)) if each)


def _classes(result: Row) -> str:
    """Return a table of the classes: how many were there, found, and named wrongly."""
    table, names = result.get("confusion"), result.get("class_names") or []
    if not table or len(table) > SHOWN:
        return ", ".join(map(_text, names[:SHOWN]))
    rows = []
    for at, row in enumerate(table):
        there, said = sum(row), sum(each[at] for each in table)
        shares = (f"{100 * row[at] / each:.1f} %" if each else "-" for each in (there, said))
        rows.append([_text(names[at] if at < len(names) else at), f"{there:,}", *shares])
    return markdown_table(["class", "test samples", "found", "right when named"], rows, 3)


def _columns(folder: Path) -> str:
    """Return the columns of a table with their kinds, the inputs first; "" for other data."""
    from edgewire.task.model_info import read_model  # imported here: it needs PyTorch

    said: dict[str, Any] = {}
    with suppress(TaskError):
        said = json.loads(read_model(folder)[0].columns or "{}")
    lines = []
    for role in ("features", "target"):
        columns = said.get(role, ())
        texts = [f"{_text(c['name'])} ({_text(c.get('kind', 'number'))})" for c in columns]
        more = f" and {len(texts) - SHOWN:,} more" if len(texts) > SHOWN else ""
        lines += [f"* {role}: {', '.join(texts[:SHOWN])}{more}"] if texts else []
    return "\n".join(lines)


def _nodes(result: Row, folder: Path) -> str:
    """Return a table of the nodes."""
    main, rows = main_of(result), []
    for node in nodes_of(run_of(folder, result))[:SHOWN]:
        counts = [node.count(key) for key in ("samples", "uplink_bytes", "downlink_bytes")]
        texts = ["-" if each is None else f"{each:,.0f}" for each in counts]
        rows.append([_text(node.label), *texts, main.text(node.count(main.name))])
    heads = ["node", "samples", "bytes up", "bytes down", f"{main.name} on its own samples"]
    return markdown_table(heads, rows, 4) if rows else ""


def _made(result: Row, folder: Path) -> str:
    given = readable(read_overrides, folder) or {}
    # A card goes to others, and a path may name a user.
    shown = {key: Path(text).name if key in PATHS else text for key, text in given.items()}
    command = shlex.join(["python", "run.py", *(f"{key}={text}" for key, text in shown.items())])
    command = command.replace("`", "'")
    versions = ", ".join(
        f"{_text(k)} {_text(v)}" for k, v in (result.get("versions") or {}).items()
    )
    return f"```\n{one_line(command, 1000)}\n```\n\nVersions: {versions}."
