"""A trained model for use: raw samples in, classes and probabilities or values out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from edgewire.task.datasets import Data
from edgewire.task.datasets.arrays import arrays_in
from edgewire.task.datasets.folder import is_image, labelled, load_photos, photos_of, warn_of
from edgewire.task.errors import TaskError, described
from edgewire.task.model_info import ModelInfo, fitted, in_words, kinds_of, samples_of
from edgewire.task.objectives import Objective
from edgewire.task.objectives.classification import Classification
from edgewire.task.objectives.next_token import NextToken
from edgewire.task.objectives.reconstruction import Reconstruction
from edgewire.task.objectives.regression import Regression
from edgewire.task.steps import evaluate, evaluating
from edgewire.task.tables.columns import Columns
from edgewire.task.tables.read import ids_of, inputs_of, random_rows, rows_of, targets_of
from edgewire.task.tensors import Tensors, count, leaves, rows

if TYPE_CHECKING:  # it takes half a second to import
    import pandas as pd

log = getLogger("edgewire")
SHOWN = 20  # the most classes or outputs of which a prediction has a column each
# inputs, targets, and what rows are called: the column's name, and the names; None: none
Found = tuple[Tensors, Tensors | None, tuple[str, Sequence[Any]] | None]


class Composed(nn.Module):
    """Calls `transform`, then `model`: modules or functions."""

    def __init__(self, transform: Any, model: Any) -> None:
        super().__init__()
        self.transform, self.model = transform, model

    def forward(self, inputs: Tensors) -> Tensors:
        """Return the outputs for samples as the data have them, (N, ...) each."""
        found: Tensors = self.model(self.transform(inputs))
        return found


class Predictor:
    """A trained model, in eval mode on the CPU.

    `module`: raw tensors in, logits or other outputs out. `answering`: the same, with
    `Objective.answer`. `classes`: the names of the classes, in the order of the logits; () without
    classes. `info`: what the model's file says. `reader`: reads a file of samples as all data of a
    device.
    """

    def __init__(
        self,
        info: ModelInfo,
        model: nn.Module,
        transform: Callable[[Tensors], Tensors],
        objective: Objective,
        reader: Callable[[str], Data],
    ) -> None:
        self.info, self.objective, self._reader = info, objective, reader
        self.module = Composed(transform, model).eval().requires_grad_(False)
        self.answering = Composed(self.module, objective.answer).eval()
        self.classes = tuple(info.class_names or map(str, range(info.classes)))
        self._table = None if info.columns is None else Columns.from_json(info.columns)

    def outputs(self, inputs: Tensors) -> Tensors:
        """Return what the outputs of raw samples say: `Objective.answer`, (N, ...).

        Several tensors are a tuple. Raises `TaskError` for samples that the model does not take.
        """
        try:
            with evaluating(self.module), torch.no_grad():
                parts = [
                    self.answering(rows(inputs, at, at + self.info.batch))
                    for at in range(0, max(count(inputs), 1), self.info.batch)
                ]
        except Exception as error:  # a model may raise anything
            raise TaskError(
                f"the model does not take {in_words(kinds_of(inputs, 0))} ({described(error)}): it "
                f"was trained with {in_words(self.info.inputs)}"
            ) from error
        whole = tuple(torch.cat(each) for each in zip(*map(leaves, parts), strict=True))
        return whole[0] if isinstance(parts[0], Tensor) else whole

    def predict(self, source: Any) -> pd.DataFrame:
        """Return a table with a row for each sample of `source`.

        `source`: a tensor or array, or several in a tuple or by name, of raw samples; rows of a
        table (a DataFrame, or a CSV or Parquet file); a photo, a folder of photos, or of class
        folders; an .npz or .npy file; text (a file, or `bytes`). One sample alone counts as a batch
        of one.

        The columns are `class`, `probability` and each class's probability, `p(CLASS)`; or `value`;
        or `error` (a model that reconstructs), `token` (the next one), or `output`. If the source
        has the targets, too, `attrs["metrics"]` of the table holds the loss and the metrics by
        name. The index is a DataFrame's own one, or the files of photos. Of a table's file it is
        the first column that tells all rows apart and is no input; else it counts from 1. The log
        warns of answers that are no numbers; they have no class.

        Raises `TaskError` for a source that cannot be read, that lacks a column, or that has an
        unknown class.
        """
        import pandas as pd

        inputs, targets, names = self.read(source)
        found = pd.DataFrame(self._columns(inputs))
        key, index = names or ("id", range(1, len(found) + 1))
        found.index = pd.Index(index, name=key)
        odd = found.select_dtypes("number").isna().any(axis=1).to_numpy()
        if odd.any():
            found.loc[odd, found.columns.intersection(["class", "token"])] = None
            said = "%d of %d answers are no numbers, that of %s %s first: look at these samples"
            log.warning(said, odd.sum(), len(found), key, found.index[odd.argmax()])
        if targets is not None and len(found):
            model, prepared = self.module.model, self.module.transform(inputs)
            metrics = evaluate(model, self.objective, prepared, targets, self.info.batch)
            found.attrs["metrics"] = {n: metrics[n] for n in self.objective.names if n in metrics}
        return found

    def samples(self, count: int) -> Tensors:
        """Return random raw samples of the kind of the training's; always the same ones."""
        if self._table is None:
            return samples_of(self.info.inputs, count)
        return random_rows(self._table, count)

    def _columns(self, inputs: Tensors) -> dict[str, Any]:
        """Return the columns of a prediction by name, one entry a sample each."""
        if isinstance(self.objective, Reconstruction):
            prepared = self.module.transform(inputs)
            with evaluating(self.module), torch.no_grad():
                return {"error": self.objective.errors(self.module.model, prepared).numpy()}
        found = self.outputs(inputs)
        if not isinstance(found, Tensor):
            return {f"output_{at + 1}": each.tolist() for at, each in enumerate(leaves(found))}
        if isinstance(self.objective, NextToken):
            best = found[:, -1].softmax(1).max(1)
            return {"token": best.indices.numpy(), "probability": best.values.numpy()}
        if self.classes and found.dim() == 2 and found.shape[1] >= len(self.classes):
            names = np.array([*self.classes, *map(str, range(len(self.classes), found.shape[1]))])
            best, shares = found.max(1), isinstance(self.objective, Classification)
            columns = {"probability": best.values.numpy()} if shares else {}
            shown = {f"{'p' if shares else 'output'}({n})": k for k, n in enumerate(names)}
            columns |= {n: found[:, k].numpy() for n, k in shown.items() if len(names) <= SHOWN}
            numbers = np.arange(len(names), dtype=object)  # an answer may be none
            answers = names if self.info.class_names else numbers
            return {"class": answers[best.indices.numpy()], **columns}
        flat = found[:, None] if found.dim() == 1 else found.flatten(1)
        name = "value" if isinstance(self.objective, Regression) else "output"
        if flat.shape[1] > SHOWN:
            return {name: flat.tolist()}
        heads = [name] if flat.shape[1] == 1 else [f"{name}_{k + 1}" for k in range(flat.shape[1])]
        return {head: flat[:, k].numpy() for k, head in enumerate(heads)}

    def read(self, source: Any) -> Found:
        """Return the raw inputs of a source (`predict`), its targets, and its rows' names."""
        if hasattr(source, "columns"):  # a DataFrame
            if self._table is None:
                raise TaskError("this model takes no rows of a table, but tensors or arrays")
            cells = rows_of(source, self._table)
            index = (source.index.name or "id", source.index)
            return inputs_of(cells, self._table), targets_of(cells, self._table), index
        if not isinstance(source, str | Path):
            source = np.frombuffer(source, np.uint8) if isinstance(source, bytes) else source
            return fitted(source, self.info.inputs), None, None
        path, own = Path(source).expanduser(), self.info.dataset.get("own") or {}
        if not path.exists():
            raise TaskError(f"{path}: there is no such file or folder")
        if path.suffix.lower() in (".npy", ".npz"):
            arrays = arrays_in([path])
            if own.get("target") not in arrays:
                return fitted(self._inputs(arrays, own), self.info.inputs), None, None
        elif self._table is not None:
            cells = rows_of(str(path), self._table, [name for name, _ in self._table.left])
            ids = ids_of(cells, self._table)
            return inputs_of(cells, self._table), targets_of(cells, self._table), ids
        elif path.is_dir() or is_image(path) or self.info.dataset.get("name") == "imagefolder":
            return self._photos(path)
        split = self._reader(str(path)).train
        return split.inputs, split.targets if leaves(split.targets) else None, None

    def _inputs(self, arrays: Mapping[str, Any], own: dict[str, Any]) -> Any:
        """Return those of a file's arrays that are the inputs; `own`: the options of the reader."""
        if "dtype" not in self.info.inputs:
            return arrays
        names, left = own.get("inputs"), [k for k in arrays if k != own.get("group")]
        name = names[0] if isinstance(names, list) else names
        if len(left) > 1:
            left = [k for k in left if [*arrays[k].shape[1:]] == self.info.inputs["shape"]]
        left = [str(name)] if name in arrays else left
        if len(left) != 1:
            takes = f"the model takes one array, {in_words(self.info.inputs)}"
            raise TaskError(f"the file holds {', '.join(arrays)}, and {takes}: save it alone")
        return arrays[left[0]]

    def _photos(self, path: Path) -> Found:
        shape: Any = self.info.inputs["shape"] if "dtype" in self.info.inputs else ()
        if len(shape) != 3 or shape[0] != 3:
            raise TaskError(f"{path}: this model takes no photos, but {in_words(self.info.inputs)}")
        files, labels = [path] if path.is_file() else sorted(filter(is_image, path.iterdir())), None
        if path.is_dir() and (files or not [*path.glob("[!.]*/")]):
            warn_of([f for f in photos_of(path)[1] if f.parent == path], path)
            if not files:
                raise TaskError(f"{path} has no photos: there is nothing to predict")
        if not files:
            found = labelled(path, self.classes)
            files, labels = [file for file, _ in found], torch.tensor([label for _, label in found])
        names = [each.relative_to(path if path.is_dir() else path.parent) for each in files]
        return load_photos(files, shape[-1]), labels, ("id", [each.as_posix() for each in names])
