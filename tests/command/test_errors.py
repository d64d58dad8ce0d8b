"""A mistake in the configuration ends in one line that says what to do.

Each kind of mistake has one case here. Mistakes that `conf.check` refuses are in `tests/conf`.
"""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BAD = [
    (["foo=1"], "no key foo"),
    (["roundz=1"], "did you mean rounds"),
    (["optimiser=sgd"], "there is no key optimiser; did you mean optimizer?"),
    (["workers=2"], "did you mean compression.workers or engine.workers?"),
    (["momentum=0"], "mean compression.momentum or model.momentum or optimizer.momentum?"),
    (["partition.alpa=1"], "did you mean partition.alpha, which belongs to partition=dirichlet?"),
    (["hydra.nix=1"], "there is no key hydra.nix; python run.py --help lists all keys"),
    (["optimizer.lr=0.1"], "there is no key optimizer.lr; did you mean lr?"),
    (["optimizer.momentumm=0.1"], "did you mean optimizer.momentum?"),
    (["model.hidden=[0]"], "there is no key model.hidden; python run.py --help"),
    (["+algorithm.x=3"], "there is no key algorithm.x: algorithm is one value"),
    (["++rounds.x=3"], "there is no key rounds.x: rounds is one value"),
    (["+model@x=mlp"], "there is no place x for model@x="),
    (["downlink.changes={}"], "downlink.changes={}: Value '{}' is not a valid bool"),
    (["gradients=-1"], "gradients is a group of keys, not one value"),
    (["screen=[1]"], "screen is a group of keys, not one value"),
    (["screen=${lr}"], "screen cannot be of type float"),
    (["dataset.classes=${lr}"], "dataset.classes cannot be of type float"),
    (["dataset.classes=cat"], "dataset.classes must be a list: dataset.classes=[NAME,NAME]"),
    (["dataset.classes.a=1"], "there is no key dataset.classes.a: dataset.classes is one value"),
    (["++local_steps.a=1"], "there is no key local_steps.a: local_steps is one value"),
    (["local_steps=99999999999999999999"], "local_steps must be below 9223372036854775808, not 99"),
    (["seed=4294967296"], "seed must be below 4294967296, not 4294967296"),
    (["model={nme:mlp}"], "there is no key model.nme; did you mean model.name?"),
    (["algorithm=[1]"], "a group takes a name"),
    (["engine.workers={a:1}"], "engine.workers must be int"),
    (["strategy=fedavg", "strategy.fraction_train=[1]"], "strategy.fraction_train must be float"),
    (["dataset.size=99999999999999999999"], "dataset.size must be below 65536"),
    (["algorithm=x"], "no algorithm=x. there are: adacomp, asgd, cesgd, comp_asgd, dgc, esgd"),
    (["strategy=null"], "Config group"),
    (["algorithm=sgd", "strategy/staleness=global"], "belongs to strategy=asynchronous"),
    (["algorithm=sgd", "strategy.pushes=3"], "belongs to strategy=asynchronous"),
    (["algorithm=adacomp", "strategy.pushes=0"], "pushes must be at least 1"),
    (["algorithm=adacomp", "strategy.in_flight=2", "compression=topk"], "keep no memory"),
    (["algorithm=adacomp", "strategy.staleness.a=1"], "belongs to strategy/staleness=polynomial"),
    (["algorithm=fedbuff", "strategy.pushes=5"], "buffer=10 is never full with pushes=5"),
    (["algorithm=fedasync", "strategy.server_lr=2"], "a server_lr of at most 1"),
    (["network.classes={fast:{share:1}}"], "'+network.classes={NAME:"),
    (["network.classes.fast.share=1"], "'+network.classes={NAME:"),
    (["+network.classes.fast.share=1"], "'+network.classes={NAME:"),
    (["network.waiting=long"], "network.waiting must be one of none, uniform"),
    (["network=mixed", "network.classes.fast.share=0.9"], "add up to 1"),
    (["nodes"], "nodes"),
    (["dataset.root=~/x"], "~/x"),
    (["dataset=mnist", "dataset.root='~/nowhere'"], f"{Path.home()}/nowhere"),
    (["hydra.run.dir=/dev/null/x"], "/dev/null"),
    (["nodes=-1"], "nodes must be a number of at least 1, not -1"),
    (["nodes=1.5"], "nodes"),
    (["nodes=100000"], "more than the 143"),
    (["compression.quantizer=int9"], "int9"),
    (["compression=f2i", "compression.level=99"], "level"),
    (["engine.workers=-1"], "engine.workers"),
    (["engine.workers=x"], "engine.workers must be int"),
    (["model=lenet5"], "dataset.size"),
    (["dataset=mnist", "dataset.root=/nowhere"], "/nowhere"),
    (["device=cuda:77"], "device=cuda:77"),
    (["device=toaster"], "device=toaster"),
    (["optimizer.momentum=-1"], "momentum"),
    (["schedule=step", "schedule.step_size=0"], "schedule.step_size must not be 0"),
    (["strategy=fedtrimmedavg", "strategy.beta=2"], "beta"),
    (["partition=dirichlet", "partition.alpha=-1"], "lpha"),
    (["partition=dirichlet", "partition.alpha=0.01", "nodes=300"], "larger partition.alpha"),
    (["engine=ray", "engine.gpus_per_client=-1"], "engine.gpus_per_client"),
    (["engine=ray", "engine.gpus_per_client=64"], "engine.gpus_per_client=64"),
    (["engine=ray", "network=lte"], "cannot honour network.up_mbps=5, network.down_mbps=20"),
    (["engine=ray", "algorithm=adacomp"], "network.waiting=uniform"),
    (
        ["engine=ray", "network.loss=0.1", "timeout=9"],
        "network.loss=0.1: give network.loss=0, or engine=local",
    ),
    (["engine=ray", "verbose=true"], "engine=ray cannot honour verbose=true"),
    (["engine=ray", "engine.workers=2"], "engine.workers"),
    (["engine=ray", "engine.memory_mb=900"], "engine.memory_mb"),
    (["engine.actors=2"], "belongs to engine=ray"),
    (["engine.address=here:1"], "belongs to engine=ray or engine=superlink"),
    (["engine=superlink"], "needs engine.address=HOST:PORT"),
    (
        ["engine=superlink", "engine.address=a:1", "dataset=imagefolder"],
        "dataset.root=FOLDER with class folders; or, for photos that lie at the nodes alone, "
        "dataset.classes=[cat,dog]",
    ),
    (["engine=superlink", "engine.address=here"], "give HOST:PORT, as in 127.0.0.1:8000"),
    (["engine=superlink", "engine.address=127.0.0.1:9"], "no SuperLink answers at 127.0.0.1:9"),
    (["engine=superlink", "engine.address=127.0.0.1:9", "network=lte"], "network.up_mbps=5"),
    (["engine=superlink", "engine.address=127.0.0.1:9", "verbose=true"], "superlink.log"),
    (["device=meta"], "device=meta"),
    (["dataset.classes=[a,b]"], "dataset.classes"),
    (["nodes=abc"], "'abc' of type 'str' could not be converted to Integer"),
    (["partition=pathological", "partition.num_classes_per_partition=99"], "num_classes"),
]


@pytest.mark.few(40)
@pytest.mark.parametrize(("overrides", "part"), BAD, ids=[" ".join(o) for o, _ in BAD])
def test_a_mistake_ends_in_one_line_and_exit_code_2(
    command, overrides, part, monkeypatch, tmp_path
):
    # Independent of ./data on this machine.
    monkeypatch.setenv("EDGEWIRE_DATA", str(tmp_path / "data"))
    code, printed, folder = command(*overrides)
    assert code == 2
    lines = printed.err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert part in lines[0]
    assert not (folder / "result.json").exists()
