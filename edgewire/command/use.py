"""`load_model`, and the words `predict` and `export` of the command line."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from edgewire.command.saved_config import START, own_folders_of, started_in
from edgewire.conf.own_packages import look_in
from edgewire.machine.errors import Parser
from edgewire.report.format import human_bytes
from edgewire.report.runs import HYDRA, read_result, run_of
from edgewire.report.summary import trained
from edgewire.strategy.run.whole_files import replace_file
from edgewire.task.errors import listed
from edgewire.task.metric import LOSS
from edgewire.task.model_file import file_of

if TYPE_CHECKING:  # they take seconds to import, and are imported where they are needed
    import pandas as pd

    from edgewire.task.predictor import Predictor

# what follows a word of the command line, and the help
RUN, FILE = "a run's folder, or a model.safetensors", "a table, photo, folder, .npz, .npy or text"
TAKES = {
    "predict": {"run": RUN, "file": FILE},
    "export": {"run": RUN, "format": "onnx, pte or torch", "file?": f"samples to try: {FILE}"},
}
PREDICTIONS = "predictions.csv"
SHOWN = 5  # rows and columns of a prediction on the screen


def load_model(run: Path | str, packages: Sequence[str] = ()) -> Predictor:
    """Return the trained model of a run for use; `run`: its folder, or its `model.safetensors`.

    `packages`: packages that the file may name though they are not files of your own, such as
    `["torchvision"]`. The code of what you name here is run.

    Raises `TaskError` or `ConfigError` in one line for a file that cannot be used, and for a class
    that it may not name.
    """
    from edgewire.conf.saved_model import predictor_of  # it imports torch

    look_in(own_folders_of(Path(run).expanduser()))
    return predictor_of(str(run), packages)


def predict(words: Sequence[str]) -> None:
    """Write what a run's model predicts for the samples of a file, and print a summary.

    `words`: those after `predict`. Raises `UsageError`, `TaskError` or `ConfigError` in one line.
    """
    given = parsed("predict", words)
    model = load_model(given.run, given.packages)
    table = model.predict(given.file)
    out = Path(given.out or PREDICTIONS)
    replace_file(out, table.to_csv())
    few = table if len(table.columns) <= SHOWN else table.filter(regex=r"^(?!(p|output)\()")
    form = "{:.4g}".format
    shown = few.head(SHOWN).to_string(max_cols=SHOWN, max_colwidth=20, float_format=form)
    names = listed([str(table.index.name), *table.columns], SHOWN + 1)
    files = f"files      {out}: rows: {len(table):,}, of {names}"
    print(*_trained(given.run), *_measured(table, model, given), shown, files, sep="\n")


def export(words: Sequence[str]) -> None:
    """Write a run's model in another format, check it against PyTorch, and print a summary.

    `words`: those after `export`. Raises `UsageError`, `TaskError` or `ConfigError` in one line.
    """
    from edgewire.task.export import MOST, SAMPLES
    from edgewire.task.model_info import in_words

    given = parsed("export", words)
    model = load_model(given.run, given.packages)
    out = exported(model, given.run, given.format, given.file, given.out)
    checked = f"checked    {SAMPLES} samples: PyTorch's answers to {MOST:g}"
    outputs = f"; the outputs are {listed(model.classes)}" * bool(model.classes)
    inputs = f"inputs     {in_words(model.info.inputs)}{outputs}"
    files = f"files      {out}: {human_bytes(out.stat().st_size)}; raw samples in, answers out"
    print(*_trained(given.run), checked, inputs, files, sep="\n")


def exported(
    model: Predictor,
    run: Path | str,
    kind: str,
    file: str | None = None,
    out: Path | str | None = None,
) -> Path:
    """Write a run's model in the format `kind`; return its file.

    `file`: samples for the check; None: some as in training. `out`: the file; None: one in the
    run's folder. Raises `TaskError`.
    """
    from edgewire.task.export import ENDS, SAMPLES
    from edgewire.task.export import export as write

    samples = model.read(file)[0] if file else model.samples(SAMPLES)
    place = Path(out) if out else Path(file_of(str(run))).with_suffix(ENDS.get(kind, ""))
    write(model, kind, place, samples)
    return place


def parsed(word: str, words: Sequence[str]) -> Namespace:
    """Return the options of a word of the command line. Raises `UsageError` for wrong ones."""
    parser = Parser(prog=f"python run.py {word}", allow_abbrev=False)
    for name, text in TAKES[word].items():
        parser.add_argument(name.rstrip("?"), nargs="?" if name.endswith("?") else None, help=text)
    parser.add_argument("--out", help=f"the file to write; else {PREDICTIONS}, or one in RUN")
    packages = "NAME,NAME: packages of others that you trust, and that the model may name"
    parser.add_argument("--packages", type=lambda text: text.split(","), default=(), help=packages)
    return parser.parse_args(words)


def _trained(run: str) -> list[str]:
    """Return the line that says what was trained; [] beside a model's file without a result."""
    folder = Path(file_of(run)).parent
    with suppress(OSError, ValueError):
        return [trained(run_of(folder, read_result(folder)))]
    return []


def _measured(table: pd.DataFrame, model: Predictor, given: Namespace) -> list[str]:
    """Return a line with the metrics of a prediction whose samples have targets."""
    kinds = {"loss": LOSS, **{each.name: each for each in model.objective.metrics}}
    found = table.attrs.get("metrics", {})
    texts = [f"{name} {kinds[name].text(value)}" for name, value in found.items()]
    own, file, folder = "", Path(given.file).expanduser(), Path(file_of(given.run)).parent
    with suppress(Exception):  # the model's file may lie without its run
        root = Path(OmegaConf.load(folder / HYDRA / "config.yaml").dataset.root).expanduser()
        root = (started_in([f"{START}={folder}"]) / root).resolve()
        if root == file.resolve() or (root, "train") == (file.resolve().parent, file.stem):
            own = " (the run's own data, training samples included)"
    line = f"metrics    {', '.join(texts)}: {len(table):,} samples with targets{own}"
    return [line] * bool(texts)
