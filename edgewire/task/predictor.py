"""A trained model for use: raw samples in, classes and probabilities or values out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from edgewire.task.datasets import Data
from edgewire.task.datasets.folder import is_image, labelled, load_photos
from edgewire.task.errors import TaskError, described
from edgewire.task.model_info import ModelInfo, fitted, samples_of
from edgewire.task.objectives import Objective
from edgewire.task.objectives.classification import Classification
from edgewire.task.objectives.next_token import NextToken
from edgewire.task.objectives.reconstruction import Reconstruction
from edgewire.task.objectives.regression import Regression
from edgewire.task.objectives.segmentation import Segmentation
from edgewire.task.steps import evaluate, evaluating
from edgewire.task.tables.columns import Columns
from edgewire.task.tables.read import inputs_of, rows_of, targets_of
from edgewire.task.tensors import Tensors, count, leaves, mapped, rows

if TYPE_CHECKING:  # it takes half a second to import
    import pandas as pd

SHOWN = 20  # the most classes or outputs of which a prediction has a column each
Transform = Callable[[Tensors], Tensors]


class RawModel(nn.Module):
    """A model behind its data's transform: raw samples in, the model's outputs (logits) out."""

    def __init__(self, transform: Transform, model: nn.Module) -> None:
        super().__init__()
        self.transform, self.model = transform, model

    def forward(self, inputs: Tensors) -> Tensors:
        """Return the outputs for samples as the data have them, (N, ...) each."""
        found: Tensors = self.model(self.transform(inputs))
        return found


class Predictor:
    """A trained model, in eval mode on the CPU.

    `module`: raw tensors in, logits or other outputs out. `classes`: the names of the classes, in
    the order of the logits; () without classes. `info`: what the model's file says. `reader`: reads
    a file of samples as all data of a device; None: there is none.
    """

    def __init__(
        self,
        info: ModelInfo,
        model: nn.Module,
        transform: Transform,
        objective: Objective,
        reader: Callable[[str], Data] | None = None,
    ) -> None:
        self.info, self.objective, self._reader = info, objective, reader
        self.module = RawModel(transform, model).eval().requires_grad_(False)
        self.classes = tuple(info.class_names or map(str, range(info.classes)))

    def outputs(self, inputs: Tensors) -> Tensors:
        """Return what the outputs of raw samples say: `Objective.answer`, (N, ...).

        Raises `TaskError` for samples that the model does not take.
        """
        try:
            with evaluating(self.module), torch.no_grad():
                parts = [
                    self.objective.answer(self.module(rows(inputs, at, at + self.info.batch)))
                    for at in range(0, max(count(inputs), 1), self.info.batch)
                ]
        except Exception as error:  # a model may raise anything
            found = [tuple(each.shape[1:]) for each in leaves(inputs)]
            raise TaskError(
                f"the model does not take samples of {found} ({described(error)}): "
                f"those that it was trained with are {self.info.inputs}"
            ) from error
        if isinstance(parts[0], Tensor):
            return torch.cat(parts)  # type: ignore[arg-type]
        whole = [torch.cat(each) for each in zip(*map(leaves, parts), strict=True)]
        again = iter(whole)
        return mapped(lambda _: next(again), parts[0])

    def predict(self, source: Any) -> pd.DataFrame:
        """Return a table with a row for each sample of `source`.

        `source`: a tensor or array, or several in a tuple or by name, of raw samples; rows of a
        table (a DataFrame, or a CSV or Parquet file); a photo, a folder of photos, or of class
        folders; an .npz or .npy file; text (a file, or `bytes`). One sample alone counts as a batch
        of one.

        The columns are `class`, `probability` and each class's probability, `p(CLASS)`; or `value`;
        or `error` (a model that reconstructs), or `output`. If the source has the targets, too,
        `attrs["metrics"]` of the table holds the loss and the metrics by name. The index has files
        of photos, a DataFrame's own index, or numbers from 1 on.

        Raises `TaskError` for a source that cannot be read, that lacks a column, or that has an
        unknown class.
        """
        import pandas as pd

        inputs, targets, index = self.read(source)
        found = pd.DataFrame(self._columns(inputs))
        found.index = pd.Index(range(1, len(found) + 1) if index is None else index, name="id")
        if targets is not None and len(found):
            prepared = self.module.transform(inputs)
            metrics = evaluate(
                self.module.model, self.objective, prepared, targets, self.info.batch
            )
            found.attrs["metrics"] = {n: metrics[n] for n in self.objective.names if n in metrics}
        return found

    def samples(self, count: int) -> Tensors:
        """Return random raw samples of the kind of the training's; always the same ones."""
        if self.info.columns is None:
            return samples_of(self.info.inputs, count)
        features = Columns.from_json(self.info.columns).features
        random = torch.Generator().manual_seed(0)
        cells: list[Tensor] = []
        windows: list[Tensor] = []
        for each in features:
            size = (count, each.length) if each.kind == "window" else (count,)
            values = each.mean + each.std * torch.randn(size, generator=random).double()
            if each.kind == "category":
                values = torch.randint(len(each.values) + 1, size, generator=random).double()
            if each.missing:
                values[0] = torch.nan
            (windows if each.kind == "window" else cells).append(values)
        parts = [torch.stack(cells, 1)] if cells else []
        parts += [torch.stack(windows, 1).float()] if windows else []
        return parts[0] if len(parts) == 1 else tuple(parts)

    def _columns(self, inputs: Tensors) -> dict[str, Any]:
        """Return the columns of a prediction by name, one entry a sample each."""
        if isinstance(self.objective, Reconstruction):
            prepared = self.module.transform(inputs)
            with evaluating(self.module), torch.no_grad():
                return {"error": self.objective.errors(self.module.model, prepared).numpy()}
        found = self.outputs(inputs)
        if not isinstance(found, Tensor):
            return {"output": [*zip(*(each.numpy() for each in leaves(found)), strict=True)]}
        if isinstance(self.objective, Segmentation):
            shares = nn.functional.one_hot(found.argmax(1), found.shape[1]).float().mean((1, 2))
            kinds = self.classes or [str(each) for each in range(found.shape[1])]
            return {f"share({n})": shares[:, k].numpy() for k, n in enumerate(kinds)}
        if isinstance(self.objective, NextToken):
            best = found[:, -1].softmax(1).max(1)
            return {"token": best.indices.numpy(), "probability": best.values.numpy()}
        if self.classes and found.dim() == 2 and found.shape[1] >= len(self.classes):
            names = np.array([*self.classes, *map(str, range(len(self.classes), found.shape[1]))])
            best = found.max(1)
            columns: dict[str, Any] = {"class": names[best.indices.numpy()]}
            if isinstance(self.objective, Classification):
                columns["probability"] = best.values.numpy()
            kind = "p" if isinstance(self.objective, Classification) else "output"
            shown = names if len(names) <= SHOWN else ()
            return columns | {f"{kind}({n})": found[:, k].numpy() for k, n in enumerate(shown)}
        flat = found[:, None] if found.dim() == 1 else found
        name = "value" if isinstance(self.objective, Regression) else "output"
        if flat.dim() > 2 or flat.shape[1] > SHOWN:
            return {name: [*flat.numpy()]}
        if flat.shape[1] == 1:
            return {name: flat[:, 0].numpy()}
        return {f"{name}_{k + 1}": flat[:, k].numpy() for k in range(flat.shape[1])}

    def read(self, source: Any) -> tuple[Tensors, Tensors | None, Sequence[Any] | None]:
        """Return the raw inputs of a source (`predict`), its targets and an index; None: none."""
        if isinstance(source, bytes):
            return self._tensors(np.frombuffer(source, np.uint8)), None, None
        columns = None if self.info.columns is None else Columns.from_json(self.info.columns)
        if hasattr(source, "columns"):  # a DataFrame
            if columns is None:
                raise TaskError("this model takes no rows of a table, but tensors or arrays")
            return *_rows(source, columns), source.index
        if not isinstance(source, str | Path):
            return self._tensors(source), None, None
        path = Path(source).expanduser()
        if not path.exists():
            raise TaskError(f"{path}: there is no such file or folder")
        if columns is not None and path.suffix.lower() not in (".npy", ".npz"):
            return *_rows(str(path), columns), None
        if path.is_dir() or is_image(path):
            return self._photos(path)
        if path.suffix.lower() == ".npy":
            return self._tensors(np.load(path, mmap_mode="c", allow_pickle=False)), None, None
        options = self.info.reader or {}
        if path.suffix.lower() == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                if options.get("target") not in archive.files:
                    return self._tensors(self._arrays(dict(archive), options)), None, None
        if self._reader is None:
            raise TaskError(
                f"{path}: this model takes no such file: give photos, or arrays in an .npy or .npz "
                "file"
            )
        data = self._reader(str(path))
        targets = data.train.targets
        return data.train.inputs, targets if leaves(targets) else None, None

    def _photos(self, path: Path) -> tuple[Tensor, Tensor | None, list[str]]:
        shape = self.info.inputs.get("shape", []) if isinstance(self.info.inputs, dict) else []
        if len(shape) != 3 or shape[0] != 3:
            raise TaskError(f"{path}: this model takes no photos, but samples of {shape}")
        files = [path] if path.is_file() else sorted(filter(is_image, path.iterdir()))
        labels = None
        if not files:
            found = labelled(path, self.classes)
            files, labels = [file for file, _ in found], torch.tensor([label for _, label in found])
        top = path if path.is_dir() else path.parent
        names = [file.relative_to(top).as_posix() for file in files]
        return load_photos(files, shape[-1]), labels, names

    def _arrays(self, arrays: dict[str, Any], options: dict[str, Any]) -> Any:
        """Return those of a file's arrays that are the inputs."""
        names = options.get("inputs") or [
            name for name in arrays if name not in (options.get("target"), options.get("group"))
        ]
        names = [names] if isinstance(names, str) else names
        if lacking := [name for name in names if name not in arrays]:
            raise TaskError(f"there is no array {lacking[0]}; there are {', '.join(arrays)}")
        return {name: arrays[name] for name in names} if len(names) > 1 else arrays[names[0]]

    def _tensors(self, source: Any) -> Tensors:
        """Return arrays as tensors of the types and shapes of the samples of training."""
        return fitted(source, self.info.inputs)


def _rows(source: Any, columns: Columns) -> tuple[Tensors, Tensor | None]:
    rows = rows_of(source, columns)
    return inputs_of(rows, columns), targets_of(rows, columns)
