"""Runs with `compact_records=true` are the same; only the bytes beside the payloads are fewer."""

import pytest

from edgewire.conf.load import to_config
from edgewire.conf.schema import ConfigError
from edgewire.strategy.factory import made
from tests.local_runs import files_of, local_run
from tests.runs import composed

FEW = ["rounds=3", "local_steps=2"]
KINDS = {
    "a strategy of Flower's": [*FEW, "downlink=f2i", "strategy.fraction_evaluate=1"],
    "sparse averaging": ["rounds=4", "algorithm=esgd", "strategy.verify_every=2"],
    "index sets by context": [
        *FEW, "algorithm=fedavg_topk", "strategy=sparse_averaging", "strategy.update=delta",
        "downlink=topk", "downlink.from_seed=true", "downlink.coder=context",
        "compression.coder=context",
    ],
    "pushes": ["algorithm=adacomp", "strategy.pushes=12", "eval_every=4"],
    "pushes, a downlink": ["algorithm=fedbuff", "strategy.pushes=12", "downlink=int8"],
    "native tensors": [*FEW, "model=vgg16_narrow", "model.size=8", "batch_size=32"],
}  # fmt: skip
BESIDE = [f"{way}_{kind}_bytes" for way in ("uplink", "downlink") for kind in ("header", "other")]


def run(folder, words, given):
    """Return a run's model and result, and the counters of the bytes beside the payloads."""
    local_run(folder, *words, "nodes=3", "dataset=digits", f"compact_records={given}")
    _, result, model, _ = files_of(folder)
    beside = {key: result.pop(key) for key in BESIDE}
    of_bytes = [key for key in result if key.startswith("link_seconds") or key.endswith("_ratio")]
    return model, {key: result[key] for key in result if key not in of_bytes}, beside


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_is_the_same_with_fewer_bytes(kind, tmp_path):
    *plain, sent = run(tmp_path / "plain", KINDS[kind], "false")
    *same, fewer = run(tmp_path / "compact", KINDS[kind], "true")
    assert same == plain
    assert same[1]["failures"] == 0
    assert same[1]["virtual_seconds"] > 0  # the clock reads the local steps in compact records
    assert fewer["uplink_other_bytes"] == fewer["downlink_other_bytes"] == 0
    # the matrices of evaluations take as many bytes in both
    most = {"uplink": 0.5 if kind == "a strategy of Flower's" else 0.35, "downlink": 0.35}
    for way in ("uplink", "downlink"):
        before = sent[f"{way}_other_bytes"] + sent[f"{way}_header_bytes"]
        assert 0 < fewer[f"{way}_header_bytes"] < most[way] * before


@pytest.mark.parametrize("algorithm", ["synthetic_gradients", "split_backprop"])
def test_a_cut_model_refuses_compact_records(algorithm):
    config = to_config(composed(f"algorithm={algorithm}", "compact_records=true"))
    with pytest.raises(ConfigError, match="compact_records=false"):
        made(config)
