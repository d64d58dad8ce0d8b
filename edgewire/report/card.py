"""The model card of a run, `README.md`: what was trained on what, how good it is, and its limits.

Its head is YAML as the Hugging Face Hub reads it (`huggingface_hub.ModelCard`). That library is not
needed here: its import would take longer than the whole card.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from edgewire.report.format import NOTHING, markdown_table, one_line
from edgewire.report.node_table import nodes_of
from edgewire.report.reader import readable, reading
from edgewire.report.runs import Row, Run, number, read_overrides, read_result, run_of
from edgewire.report.summary import NAME, answers, data_name, hides_nodes, privacy_told, trained
from edgewire.task.metric import main_of
from edgewire.task.model_file import MODEL, said_in

CARD = "README.md"
SHOWN = 100  # rows of a table
PATHS = ("dataset.root", "model.file")
# objective and kind of samples -> the Hub's name of the task
TASKS = {
    "Classification of images": "image-classification",
    "Classification of rows": "tabular-classification",
    "Regression of rows": "tabular-regression",
    "NextToken of texts": "text-generation",
}
USE = """## Use

```python
from edgewire import load_model
model = load_model("RUN")  # RUN: this folder, with model.safetensors
model.predict(FILE)  # raw rows, photos, arrays or text; a table of answers
```

Or `python run.py predict RUN FILE` and `python run.py export RUN onnx`.

## How it was made

```
{command}
```

## Limits

* The values are of test samples from the same source as the training samples. Measure the model on
  your own samples before you rely on it. A class or a node with few samples may fare worse.
* {privacy}"""
PLAIN = """Nothing hides what single samples have taught the model: federated training keeps
  samples at their nodes, and is no proof of privacy."""
PRIVATE = """Noise hides each {}: {}. Other models that were trained on the same
  samples are not counted, and neither are several {}s of one person."""


def write_card(folder: Path) -> None:
    """Write the model card of a run into its folder.

    Raises `ResultsError` for a folder without a result or with damaged files, and `OSError`.
    """
    with reading(folder):
        run = run_of(folder, read_result(folder))
        text = "\n\n".join(filter(None, _parts(run, run.result, folder))) + "\n"
    (folder / CARD).write_text(text, encoding="utf-8")


def _parts(run: Run, result: Row, folder: Path) -> Iterator[str]:
    """Yield the parts of the card; `result`: the content of the run's `result.json`."""
    data = data_name(run)
    yield _head(result, data)
    yield f"# {_text(result['model'])} on {_text(data)}"
    yield _text(trained(run), 200)
    told = {key: text for key, text in answers(run).items() if key != "files"}
    by_node, main = hides_nodes(result), main_of(result).name
    if by_node:  # the numbers of bytes and failures tell who took part
        told = {key: told[key] for key in (main, "privacy", "classes") if key in told}
    told["versions"] = ", ".join(f"{k} {v}" for k, v in (result.get("versions") or {}).items())
    columns = json.loads(said_in(str(folder)).get("columns") or "{}")
    for role in ("features", "target"):
        told[role] = ", ".join(
            f"{c['name']} ({c.get('kind', 'number')})" for c in columns.get(role, ())
        )
    yield "\n".join(f"* {_text(key)}: {_text(text, 5000)}" for key, text in told.items() if text)
    if names := result.get("personal"):
        layers = _text(", ".join(names))
        yield (
            f"Each node has kept its own personal layers ({layers}), and the values are measured "
            f"with them. Those in `{MODEL}` are as before training: train them on your samples."
        )
    always = result.get("constant") or {}
    metrics = [name for name in (*(result.get("metrics") or {}), "loss") if name in result]
    rows = [(name, result[name], always.get(name)) for name in metrics]
    yield _table(["metric", "value", "a constant answer"], rows)
    if table := result.get("confusion"):
        classes = enumerate(zip(result["class_names"], table, strict=True))
        counts = [(name, sum(row), row[at]) for at, (name, row) in classes]
        yield _table(["class", "test samples", "found"], counts)
    keys = ("samples", "uplink_bytes", "downlink_bytes", main)
    shown = [] if by_node else nodes_of(run)
    nodes = [(node.label, *map(node.count, keys)) for node in shown]
    yield _table(["node", "samples", "bytes up", "bytes down", f"{main} on its samples"], nodes)
    given = readable(read_overrides, folder) or {}
    # A card goes to others, and a path may name a user.
    given |= {key: _hidden(given[key]) for key in PATHS if key in given}
    command = shlex.join(["python", "run.py", *(f"{key}={text}" for key, text in given.items())])
    bound = privacy_told(result)
    unit = ("node", "node") if by_node else ("training sample", "sample")
    privacy = PRIVATE.format(unit[0], _text(bound, 200), unit[1]) if bound else PLAIN
    yield USE.format(command=one_line(command.replace("`", "'"), 1000), privacy=privacy)


def _hidden(path: str) -> str:
    """Return a path's last part below `PATH/`; the path may have Hydra's quotes."""
    quote = path[:1] if path[:1] in ("'", '"') else ""
    return f"{quote}PATH/{Path(path.strip(quote or None)).name}{quote}"


def _head(result: Row, data: str) -> str:
    """Return the card's values for programs; the license is `other` until its owner gives one."""
    import yaml  # type: ignore[import-untyped]  # imported here: a command without runs needs none

    kind = f"{result['objective']} of {(result.get('data') or {}).get('kind')}"
    task = TASKS.get(kind, "other")
    values = {name: number(result.get(name)) for name in (*(result.get("metrics") or {}), "loss")}
    measured = {
        "task": {"type": task},
        "dataset": {"name": data, "type": str(result["dataset"])},
        "metrics": [{"type": k, "value": v} for k, v in values.items() if v is not None],
    }
    head = {
        "license": "other",
        "library_name": "edgewire",
        "pipeline_tag": task,
        "tags": ["edgewire", "federated-learning", "pytorch", "safetensors"],
        "model-index": [{"name": f"{data}-{result['model']}", "results": [measured]}],
    }
    return f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table of names and numbers; "" without rows."""
    cells = [[_cell(each) for each in row] for row in [*rows][:SHOWN]]
    return markdown_table(heads, cells, len(heads) - 1) if cells else ""


def _cell(value: object) -> str:
    if isinstance(value, float | int):
        return f"{value:,.10g}"
    return NOTHING if value is None else _text(value)


def _text(value: object, longest: int = NAME) -> str:
    """Return a text from elsewhere on one line, without Markdown's signs but `|`."""
    return one_line(str(value), longest).translate(
        {ord(sign): f"\\{sign}" for sign in "\\`*_[]<>#"}
    )
