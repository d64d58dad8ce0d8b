"""Each preset of sparse averaging trains exactly like SGD if nodes send every entry."""

import pytest
import torch
from omegaconf import OmegaConf
from safetensors.torch import load_file
from torch import nn

from docs.configuration import preset
from edgewire.client.node import Node
from edgewire.client.training import Trainer
from edgewire.conf.build import data_of, model_of
from edgewire.conf.load import HERE
from tests.local_runs import local_run
from tests.runs import choices, configured, history_of, result_of
from tests.same import expect_same

ROUNDS = 8
SAME = [
    f"rounds={ROUNDS}", "nodes=4", "batch_size=16", "lr=0.1", "eval_every=8",
    "strategy.verify_every=3", "strategy/optimizer=sgd", "compression.quantizer=float32",
    "compression.feedback=false", "compression.coder=entropy", "schedule=constant",
]  # fmt: skip
# For each method the options with which nodes send every entry and use no momentum.
WHOLE = {
    "topk": {"density": 1.0, "warmup_density": 1.0},
    "randomk": {"density": 1.0},
    "cesgd": {"density": 1.0},
    "esgd": {"drop": 0.0},
    "gradient_dropping": {"drop": 0.0},
    "dgc": {"sparsity": 0.0, "momentum": 0.0, "warmup_steps": 0},
    "threshold": {"threshold": 0.0, "sent": "value", "clip": None},
    "energy": {"energy": 1.0, "last_energy": 1.0},
    "dense": {},
}
# Options that do not go with the optimiser of `SAME`, or with an exact downlink.
REMOVED = {
    "fedadam_topk": [
        "~strategy.optimizer.beta2", "~strategy.optimizer.eps", "strategy.server_lr=1",
    ],
    "flasc": ["strategy.server_lr=1"],
    "one_bit_adam": [
        "~strategy.optimizer.warmup_steps", "~strategy.optimizer.eps",
        "compression.exact_steps=null",
        "downlink.exact_steps=null",
    ],
    "edgewire": ["strategy.follow=steps", "strategy.sender_exponent=0"],
    "edgewire_gradients": ["downlink.warmup_steps=null", "downlink.density=null"],
}  # fmt: skip


def presets():
    """Return the settings of each preset of sparse averaging, read from its file to save time."""
    found = {name: preset(name) for name in choices("algorithm")}
    del found["ef21_sgdm"]  # its sums are rounded, see tests/compression/sparsifiers/test_ef21.py
    del found["fedavg_secure"]  # levels on a common scale: tests/strategy/secure
    del found["edgewire_sampled"]  # `edgewire_fixed`, with its own optimiser and differences down
    return {name: sets for name, sets in found.items() if sets["strategy"] == "sparse_averaging"}


PRESETS = presets()
ADAPTIVE = [name for name, sets in PRESETS.items() if sets.get("optimizer") == "adamw"]
DELTAS = [name for name, sets in PRESETS.items() if sets.get("strategy.update") == "delta"]


def words(name):
    """Return the overrides with which a preset sends every entry."""
    choice = OmegaConf.load(HERE / "compression" / f"{PRESETS[name]['compression']}.yaml")
    options = WHOLE[choice.get("sparsifier", "dense")]
    given = [f"compression.{key}={'null' if v is None else v}" for key, v in options.items()]
    numbers = ("levels", "bucket", "rank", "means", "clip", "residual_decay", "magnitudes")
    unset = [f"compression.{key}=null" for key in numbers]
    down = PRESETS[name].get("downlink")
    lossy = (
        ["downlink=average"]
        if down in ("edgewire", "edgewire_fixed", "sparse_ternary", "one_bit")
        else []
    )
    lossy += ["downlink.density=1", "downlink.quantizer=float32"] if down == "topk" else []
    plain = ["local=plain", "optimizer.weight_decay=0", "strategy.server_lr=1"]
    return [
        f"algorithm={name}",
        *SAME,
        *given,
        *unset,
        *lossy,
        *REMOVED.get(name, []),
        *(plain if name in ADAPTIVE else []),
    ]


def run(folder, *overrides):
    """Run in this process; return the weights, the result and the training losses."""
    local_run(folder, *overrides)
    losses = [row["train_loss"] for row in history_of(folder)]
    return load_file(folder / "model.safetensors"), result_of(folder), losses


@pytest.fixture(scope="module")
def sgd(tmp_path_factory):
    """Return a function that makes the run of plain SGD, once for each set of overrides."""
    found = {}

    def reference(*extra):
        if extra not in found:
            found[extra] = run(tmp_path_factory.mktemp("sgd"), "algorithm=sgd", *SAME, *extra)
        return found[extra]

    return reference


@pytest.mark.few(2)
@pytest.mark.parametrize("name", [name for name in PRESETS if name not in ADAPTIVE])
def test_a_preset_that_sends_every_entry_is_sgd(name, sgd, tmp_path):
    gradients = ["strategy.update=gradient", "optimizer=none", "strategy.weighted_by_key=null"]
    weights, result, losses = run(tmp_path, *words(name), *gradients)
    expected, reference, expected_losses = sgd()
    assert losses == expected_losses
    expect_same(weights, expected)
    assert result["failures"] == 0
    assert result["client_updates"] == reference["client_updates"] == 4 * ROUNDS
    assert reference["sparsity"] == 0


@pytest.mark.few(4)
@pytest.mark.parametrize("name", DELTAS)
def test_a_preset_that_sends_every_entry_has_the_deltas_of_sgd(name, sgd, tmp_path):
    deltas = ["strategy.update=delta", "optimizer=sgd", "local_steps=3"]
    deltas += ["strategy.weighted_by_key=num-examples", "optimizer.momentum=0.9"]
    weights, _, losses = run(tmp_path, *words(name), *deltas)
    expected, _, expected_losses = sgd(*deltas)
    assert losses == expected_losses
    expect_same(weights, expected)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_sgd_equals_plain_pytorch(optimizer, tmp_path):
    overrides = ["algorithm=sgd", *SAME, f"strategy/optimizer={optimizer}", "lr=0.01"]
    weights, _, _ = run(tmp_path, *overrides)
    config = configured(*overrides)
    trainer, data = Trainer(config), data_of(config)
    model = model_of(config, data)
    made = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    }[optimizer](model.parameters())
    for number in range(ROUNDS):
        batches = [trainer.samples.batch(Node(i, 4), number) for i in range(4)]
        made.zero_grad()
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        nn.functional.cross_entropy(model(x), y).backward()
        made.step()
    for key, tensor in model.state_dict().items():
        torch.testing.assert_close(weights[key], tensor, rtol=1e-3, atol=1e-5)
