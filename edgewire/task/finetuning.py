"""Fine-tuning: weights from a file, adapters, frozen parameters, a model in half precision."""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from logging import getLogger
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from edgewire.task.errors import TaskError, errors_as, listed
from edgewire.task.flat_model import tensors_of
from edgewire.task.model_file import file_of, sha256_of
from edgewire.task.tensors import mapped

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
log = getLogger("edgewire")
SHOWN = 5  # the most names that an error message lists
BATCHNORM = "batchnorm"  # in `personal=`: all tensors of all BatchNorm layers


class Adapter:
    """Base class of adapters: small layers that are trained in place of a model's own layers.

    The base class adds none.
    """

    def add(self, module: nn.Module) -> nn.Module:
        """Return the model with its adapters; only the adapters' parameters are trained."""
        return module


@dataclass
class LoRA(Adapter):
    """Low-rank adapters (Hu et al. 2021, section 4.1), made by the library PEFT.

    A chosen layer computes W x + (lora_alpha / r) B A x. W is frozen. A, (r, inputs), and B,
    (outputs, r), are trained; B begins with zeros.

    Args:
        r: the rank.
        lora_alpha: the scale of the adapters' output.
        lora_dropout: the probability of dropout before A.
        target_modules: names of the layers that get an adapter, or ends of names; "all-linear": all
            linear layers.

    Raises:
        TaskError: PEFT is not installed, or it refuses the model or an option.
    """

    r: int = 8
    lora_alpha: float = 16
    lora_dropout: float = 0.0
    target_modules: list[str] | str = "all-linear"

    def add(self, module: nn.Module) -> nn.Module:
        """Return the model with the adapters; all other parameters are frozen."""
        try:
            import peft
        except ImportError as error:
            raise TaskError(
                "adapter=lora needs the library PEFT: pip install 'peft>=0.13'"
            ) from error
        names = self.target_modules
        if not isinstance(names, str):
            names = [*map(str, names)]  # a Sequential's have numbers as names
        cure = ": adapter.target_modules=[...] names the layers that get an adapter"
        with errors_as("adapter: PEFT refuses it", cure):
            config = peft.LoraConfig(**{**vars(self), "target_modules": names})
            made: nn.Module = peft.inject_adapter_in_model(config, module)
        return made


def freeze_others(module: nn.Module, patterns: Sequence[str]) -> None:
    """Train only the parameters whose names match one of the patterns; freeze all others.

    A parameter that layers share is trained if one of its names matches. A pattern may hold the
    wildcards `*`, `?` and `[...]` of `fnmatch`. Raises `TaskError` for a pattern that matches no
    parameter.
    """
    every = list(module.named_parameters(remove_duplicate=False))
    _expect_matches("trainable", patterns, [name for name, _ in every])
    chosen = {id(p) for name, p in every if _matches(name, patterns)}
    for _, parameter in every:
        parameter.requires_grad_(id(parameter) in chosen)


def hold_frozen(module: nn.Module, patterns: Sequence[str] | None = None) -> None:
    """Put each module of which nothing is trained into eval mode, and the model into training mode.

    Then BatchNorm's statistics and the counters of frozen layers do not change, and their dropout
    is off. A module with buffers alone is frozen if there are `patterns` and none matches a buffer.
    A module without tensors has the mode of the module that holds it.
    """
    if not module.training:
        module.train()
    for prefix, each in module.named_modules():
        parameters = [parameter.requires_grad for parameter in each.parameters()]
        buffers = [name for name, _ in each.named_buffers(prefix)]
        alone = bool(patterns and buffers and not any(_matches(name, patterns) for name in buffers))
        if not any(parameters) and (parameters or alone):
            each.eval()


def personal_names(module: nn.Module, patterns: Sequence[str] | None) -> frozenset[str]:
    """Return the names of the tensors that match one of the patterns, for `FlatModel`.

    The tensors are a head (FedPer, Arivazhagan et al. 2019), or those of BatchNorm layers (FedBN,
    Li et al. 2021), for which the pattern `BATCHNORM` stands. Patterns are as in `freeze_others`.

    Raises `TaskError` for a pattern that matches no tensor, for patterns that match nothing or all
    of what is trained, and for a tensor of two layers of which only one matches.
    """
    if not patterns:
        return frozenset()
    named = module.state_dict(keep_vars=True)
    modules = module.named_modules(remove_duplicate=False)
    norms = [f"{name}." * bool(name) for name, each in modules if isinstance(each, _BatchNorm)]
    if BATCHNORM in patterns and not norms:
        raise TaskError("personal=batchnorm: the model has no BatchNorm layer")
    others = [pattern for pattern in patterns if pattern != BATCHNORM]
    # A head's names come last in the model, and first in the error.
    _expect_matches("personal", others, [*reversed(named)])
    inside = tuple(norms) if BATCHNORM in patterns else ()
    chosen = {name for name in named if _matches(name, others) or name.startswith(inside)}
    shared = {id(named[name]): name for name in named if name not in chosen}
    for name in named:
        if name in chosen and (other := shared.get(id(named[name]))):
            raise TaskError(
                f"personal={name} is also {other}, one tensor of two layers: name both, or neither"
            )
    found = tensors_of(module, chosen)
    kept = [name for name, _ in (*found.trained, *found.statistics, *found.own) if name in chosen]
    wrong = {
        "frozen tensors alone, which nodes share: name tensors that are trained": not kept,
        "all that is trained, and nothing would be sent: name fewer tensors": chosen.issuperset(
            name for name, _ in found.trained
        ),
    }
    for what in (what for what, refused in wrong.items() if refused):
        raise TaskError(f"personal={listed(patterns)} names {what}")
    return frozenset(chosen)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _expect_matches(option: str, patterns: Sequence[str], names: Sequence[str]) -> None:
    for pattern in patterns:
        if not any(_matches(name, [pattern]) for name in names):
            raise TaskError(f"{option}={pattern} matches nothing; there are {listed(names, SHOWN)}")


def tensors_in(file: str, sha256: str | None = None) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, or of the model in a run's folder, by name.

    Raises `TaskError` for a file that cannot be read, has another checksum than `sha256`, or holds
    no tensors.
    """
    from safetensors.torch import load_file as read

    if sha256 is not None and (found := sha256_of(file)) != sha256:
        raise TaskError(
            f"model.file={file} has the SHA-256 {found[:16]}, and the run's file has {sha256[:16]}:"
            " copy the run's file to this machine"
        )
    cure = ": write it by safetensors.torch.save_file(model.state_dict(), FILE), because a file of "
    with errors_as(f"model.file={file} is no safetensors file", f"{cure}torch.save can run code"):
        tensors: dict[str, Tensor] = read(file_of(file))
    if not tensors:
        raise TaskError(f"model.file={file} holds no tensors")
    return tensors


def load_tensors(
    module: nn.Module, tensors: dict[str, Tensor], file: str, new: Sequence[str] | None = None
) -> None:
    """Load the tensors of a file into a model; others keep their values.

    Tensors of the file whose names match a pattern of `new` are left out, as those of a head for
    other classes. A warning names parameters that the file lacks. Raises `TaskError` for a tensor
    that the model lacks or has in another shape, for integers where the model has floats, for a
    parameter with NaN or infinity, and for a pattern that matches no tensor of file and model.
    """
    held = module.state_dict()
    new = new or ()
    _expect_matches("model.new", new, [*reversed(held), *tensors])  # a head's names come first
    tensors = {name: each for name, each in tensors.items() if not _matches(name, new)}
    forms = {name: (_form(tensor), _form(held.get(name))) for name, tensor in tensors.items()}
    if odd := [name for name, (found, wanted) in forms.items() if found != wanted]:
        found, wanted = forms[odd[0]]
        layers = dict.fromkeys(f"{layer}.*" if (layer := n.rpartition(".")[0]) else n for n in odd)
        left_out = f", or leave layers out by 'model.new={json.dumps([*layers])}'"
        raise TaskError(
            f"{file} has {odd[0][:80]} {found}, which is {wanted} in the model: give the file of "
            f"this model{left_out * (len(layers) <= SHOWN)}"
        )
    every = list(module.named_parameters(remove_duplicate=False))  # a shared one has several names
    for name, _ in every:
        if name in tensors and not tensors[name].isfinite().all():
            raise TaskError(
                f"model.file={file} has NaN or infinity in {name[:80]}: give weights of a run that "
                "has not diverged"
            )
    loaded = {id(parameter) for name, parameter in every if name in tensors}
    left = [name for name, each in module.named_parameters() if id(each) not in loaded]
    if missing := [name for name in left if not _matches(name, new)]:
        _warn_once(
            f"model.file={file} lacks {len(missing)} parameters, which keep their random values: "
            + ", ".join(missing[:SHOWN])
        )
    module.load_state_dict(tensors, strict=False)


def _form(tensor: Tensor | None) -> str:
    if tensor is None:
        return "missing"
    return f"{tuple(tensor.shape)} of {'floats' if tensor.is_floating_point() else 'integers'}"


def warn_of_personal(file: str, personal: Sequence[str] | None) -> None:
    """Warn once of a model's file whose personal tensors are untrained; `personal`: as it says."""
    if personal:
        _warn_once(
            f"{file}: its personal layers ({listed(personal, SHOWN)[:200]}) are those before "
            "training, because each node has its own and sends them to nobody"
        )


@functools.cache
def _warn_once(text: str) -> None:
    log.warning(text)


def in_dtype(module: nn.Module, dtype: str) -> nn.Module:
    """Convert a model to a float type; its inputs are converted too, and its outputs to float32.

    `dtype`: one of `DTYPES`. Buffers of floats are converted, too.
    """
    kind = DTYPES[dtype]
    if kind == torch.float32:
        return module
    module.to(kind)
    module.register_forward_pre_hook(lambda _, args: tuple(_cast(each, kind) for each in args))
    module.register_forward_hook(lambda _, __, output: _cast(output, torch.float32))
    return module


def _cast(values: Any, kind: torch.dtype) -> Any:
    """Return a tensor, or a tuple or dictionary of tensors, with all floats in one type."""
    if isinstance(values, tuple | dict):
        return mapped(lambda each: _cast(each, kind), values)
    floats = isinstance(values, Tensor) and values.is_floating_point()
    return values.to(kind) if floats else values
