"""A mistake ends in one line that says what to do, before torch is loaded.

Each kind of mistake has one case here; refused combinations are in `tests/conf/test_rules.py`.
"""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from edgewire.command import job
from edgewire.command.exit import Failed, clear_errors

ROOT = Path(__file__).parents[2]
CALL = """
import contextlib, io, json, sys
from edgewire.command.main import cli
from tests.quick_hydra import quicken
quicken()
for words in json.loads(sys.argv[1]):
    sys.argv[1:], out, err, code = words, io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli()
        except SystemExit as end:
            code = end.code
    slow = [name for name in ("torch", "flwr.serverapp.strategy") if name in sys.modules]
    print(json.dumps([code, out.getvalue(), err.getvalue(), slow]))
"""
# These mistakes are found before the command calls `check_targets`, which imports torch.
BAD = [
    (["foo=1"], "no key foo"),
    (["roundz=1"], "did you mean rounds"),
    (["optimiser=sgd"], "there is no key optimiser; did you mean optimizer?"),
    (["workers=2"], "did you mean compression.workers or engine.workers?"),
    (["momentum=0"], "mean compression.momentum or model.momentum or optimizer.momentum?"),
    (["model._target_=mine.Net", "model.width=4", "roundz=1"], "did you mean rounds"),
    (["partition.alpa=1"], "did you mean partition.alpha, which belongs to partition=dirichlet?"),
    (["hydra.nix=1"], "there is no key hydra.nix; python run.py --help lists all keys"),
    (["optimizer.lr=0.1"], "there is no key optimizer.lr; did you mean lr?"),
    (["optimizer.momentumm=0.1"], "did you mean optimizer.momentum?"),
    (["model.hidden=[0]"], "there is no key model.hidden; model._target_= may have more keys"),
    (["+algorithm.x=3"], "+algorithm.x=3: Cannot convert"),
    (["++rounds.x=3"], "there is no key rounds.x; did you mean rounds?"),
    (["network=mixed", "+network.classes.fast.nonsense=1"], "key network.classes.fast.nonsense"),
    (["+model@x=mlp"], "In 'model/mlp': "),
    (["downlink.changes={}"], "downlink.changes: Value '{}' is not a valid bool"),
    (["gradients=-1"], "gradients is a group of keys, not one value"),
    (["screen=[1]"], "screen=[1]: Cannot merge"),
    (["screen=${lr}"], "screen is a group of keys, not one value"),
    (["dataset.classes=${lr}"], "dataset.classes: must be a list: [NAME,NAME]"),
    (["dataset.classes=cat"], "dataset.classes: must be a list: [NAME,NAME]"),
    (["dataset.classes.a=1"], "dataset.classes"),
    (["compression.denisty=1"], "no key compression.denisty; did you mean compression.density?"),
    (["+compression.xyz=1"], "no key compression.xyz; packages= may register a method"),
    (["gradients.scoop=1"], "there is no key gradients.scoop; did you mean gradients.scope?"),
    (["local_steps=99999999999999999999"], "local_steps must be below 9223372036854775808, not 99"),
    (["model={nme:mlp}"], "there is no key model.nme; did you mean model.name?"),
    (["algorithm=[1]"], "a group takes a name"),
    (["engine.workers={a:1}"], "engine.workers must be int"),
    (["strategy=fedavg", "strategy.fraction_train=[1]"], "strategy.fraction_train must be float"),
    (
        ["dataset.size=99999999999999999999"],
        "dataset.size must be a number of at least 1 and below 6",
    ),
    (
        ["algorithm=x"],
        "no algorithm=x. there are: adacomp, asgd, cesgd, comp_asgd, dgc, diloco, edgewire",
    ),
    (["strategy=null"], "strategy=null: a group takes a name"),
    (["algorithm=sgd", "strategy/staleness=global"], "belongs to strategy=asynchronous"),
    (["algorithm=sgd", "strategy.pushes=3"], "belongs to strategy=asynchronous"),
    (["algorithm=adacomp", "strategy.staleness.a=1"], "belongs to strategy/staleness=polynomial"),
    (["network.classes={fast:{share:1}}"], "network.classes={fast:{share:1}}: Key 'fast' is not"),
    (["network.classes.fast.share=1"], "did you mean network.classes?"),
    (["+network.classes.fast.share=1"], "dict is not a subclass of DeviceClass"),
    (["network.waiting=long"], "network.waiting must be one of none, uniform"),
    (["network=mixed", "network.classes.fast.share=0.9"], "add up to 1"),
    (["nodes"], "nodes"),
    (["dataset.root=~/x"], "~/x"),
    (["hydra.run.dir=/dev/null/x"], "/dev/null"),
    (["nodes=-1"], "nodes must be a number of at least 1, not -1"),
    (["lr=nan"], "lr must be a number above 0, not nan"),
    (["seed=99999999999999999999"], "seed must be a number of at least 0 and below 4294967296"),
    (["dataset.holdout=1"], "dataset.holdout must be a number of at least 0 and below 1"),
    (["network.loss=0.1"], "network.loss=0.1 needs a timeout="),
    (["strategy=fedadam", "strategy.eta=nan"], "strategy.eta must be a finite number"),
    (["+strategy.bata=1"], "strategy.bata is not an option"),
    (["~lr"], "~lr: every run has that key"),
    (["~timeout"], "~timeout: every run has that key"),
    (["-m", "nope=1,2"], "there is no key nope; did you mean nodes?"),
    (["+rounds=0"], "rounds is there already: give rounds=0"),
    (["~network.loss"], "~network.loss: every run has that key"),
    (["--config-name=nope"], "there is no configuration nope"),
    (["~network.loss"], "~network.loss"),
    (["~network.los"], "there is no key network.los; did you mean network.loss?"),
    (["-m", "algorithm=adacomp,fedbuff", "strategy.pushes=3"], "give ++strategy.pushes=3"),
    (["downlink=f2i", "downlink.density=0.1"], "downlink: option density"),
    (["downlink=full", "downlink.quantizer=int8"], 'give downlink.quantizer="float32"'),
    (["nodes=1.5"], "nodes"),
    (["compression.quantizer=int9"], "int9"),
    (["compression=f2i", "compression.level=99"], "level"),
    (["engine.workers=-1"], "engine.workers"),
    (["engine.workers=x"], "engine.workers must be int"),
    (["strategy=fedtrimmedavg", "strategy.beta=2"], "beta"),
    (["engine=ray", "engine.gpus_per_client=-1"], "engine.gpus_per_client"),
    (["privacy.epsilon=8"], "privacy.epsilon= protects nothing without privacy=sample"),
    (["secure.masks=true"], "secure.masks= protects nothing without secure=sum"),
    (["privacy={epsilon:8}"], "privacy.epsilon= protects nothing without privacy=sample"),
    (["secure={least:6}"], "secure.least= protects nothing without secure=sum"),
    (["privacy=sample", "privacy.rate=1e-9"], "privacy.rate must be a number of at least 1e-06"),
    (["personal=3"], "personal must be batchnorm or a list of names: personal=[NAME,NAME]"),
    (["privacy=none", "privacy.epsilon=8"], "privacy.epsilon= protects nothing without privacy="),
    (["engine=ray", "network=lte"], "cannot honour network.up_mbps=5, network.down_mbps=20"),
    (["engine=ray", "algorithm=adacomp"], "network.waiting=uniform"),
    (["engine=ray", "engine.workers=2"], "engine.workers"),
    (["engine.actors=2"], "belongs to engine=ray"),
    (["engine.address=here:1"], "belongs to engine=ray or engine=superlink"),
    (["engine=superlink"], "needs engine.address=HOST:PORT"),
    (["nodes=abc"], "'abc' of type 'str' could not be converted to Integer"),
    (["rounds='"], "cannot read"),
    (["compar"], "there is no command compar; did you mean compare?"),
    (["compression=topk", "compression.density=7"], "density of topk must be a number above 0"),
    (["engine=ray", "engine.actors=-1"], "at least one actor"),
    (["strategy.fraction_train=2"], "strategy.fraction_train must be from 0 to 1"),
    (["strategy=krum", "strategy.num_malicious_nodes=8"], "needs 19 nodes a round"),
    (["--rounds", "3"], "unrecognized arguments: --rounds"),
    (["resume=/nowhere"], "resume=/nowhere: there is no such folder"),
    (["resume="], "resume= takes the folder of one run"),
    (["resume=a", "rounds=9"], "rounds=9 does not go with resume="),
    (["resume=a", "-m"], "-m does not go with resume="),
    (["resume=a", "algorithm=esgd", "verbose=true"], "algorithm=esgd does not go with resume="),
    (["continue=/nowhere"], "there is no sweep: its multirun.yaml cannot be read"),
    (["continue="], "continue= takes the folder of one sweep"),
    (["continue=a", "rounds=9"], "rounds=9 does not go with continue="),
    (["experiment=esgd_baselines"], "is a sweep: add -m"),
    (["logger=nonsense"], "there is no logger=nonsense"),
    (["logger.mlflow.experiment=x"], "logger.mlflow belongs to no logger that was chosen"),
    (["logger=csv", "logger.csv.fil=x"], "did you mean logger.csv.file?"),
    (["logger._target_=pathlib.Path"], "is no Logger of edgewire.report.loggers"),
    (["logger._target_=nowhere.Mine"], "logger._target_=nowhere.Mine cannot be imported"),
    (["logger._target_=Mine"], "give PACKAGE.NAME"),
]
# These cases need a model, an optimiser, data or a device, and so torch.
LATER = [
    (["algorithm=adacomp", "strategy.pushes=0"], "pushes must be a number of at least 1"),
    (["algorithm=fedbuff", "strategy.pushes=5"], "buffer=10 is never full with pushes=5"),
    (["algorithm=fedasync", "strategy.server_lr=2"], "a server_lr of at most 1"),
    (["dataset=mnist", "dataset.root='~/nowhere'"], f"{Path.home()}/nowhere"),
    (["nodes=100000"], "more than the 143"),
    (["model=lenet5"], "dataset.size"),
    (["dataset=mnist", "dataset.root=/nowhere"], "/nowhere"),
    (["device=cuda:77"], "device=cuda:77"),
    (["device=toaster"], "device=toaster"),
    (["optimizer.momentum=-1"], "momentum"),
    (["optimizer.momentum=x"], "optimizer.momentum must be float"),
    (["schedule=step", "schedule.step_size=0"], "schedule.step_size must not be 0"),
    (["partition=dirichlet", "partition.alpha=-1"], "lpha"),
    (["partition=dirichlet", "partition.alpha=0.01", "nodes=300"], "larger partition.alpha"),
    (["engine=ray", "engine.gpus_per_client=64"], "engine.gpus_per_client=64"),
    (
        ["engine=superlink", "engine.address=a:1", "dataset=imagefolder"],
        "dataset.root=FOLDER with class folders; or, for photos that lie at the nodes alone, "
        "dataset.classes=[cat,dog]",
    ),
    (["device=meta"], "device=meta"),
    (["logger=csv", "logger.csv.file=/proc/x/y.csv"], "logger csv cannot begin"),
    (["dataset.classes=[a,b]"], "dataset.classes"),
    (["partition=pathological", "partition.num_classes_per_partition=99"], "num_classes"),
]
GROUPS = {path.name for path in (ROOT / "conf").iterdir() if path.is_dir()}
GROUPS -= {"__pycache__", "hydra"}


def expect_line(words, said, command, cli):
    """Run the command; assert that it prints one line, and ends with 2."""
    code, printed = (cli if words[0].startswith(("resume=", "continue=")) else command)(*words)[:2]
    assert (code, printed.out) == (2, "")
    (line,) = printed.err.splitlines()
    assert line.startswith("error: ")
    assert said in line


@pytest.mark.few(33)
@pytest.mark.parametrize(("words", "said"), BAD)
def test_a_mistake_ends_in_one_line_and_exit_code_2(words, said, command, cli, monkeypatch):
    monkeypatch.setattr(job, "check_targets", lambda config: pytest.fail("it imports torch"))
    expect_line(words, said, command, cli)


@pytest.mark.few(7)
@pytest.mark.parametrize(("words", "said"), LATER)
def test_a_mistake_that_needs_torch_ends_in_one_line(
    words, said, command, cli, monkeypatch, tmp_path
):
    monkeypatch.setenv("EDGEWIRE_DATA", str(tmp_path / "data"))
    expect_line(words, said, command, cli)
    assert not list(tmp_path.rglob("result.json"))


def test_mistakes_and_help_are_printed_before_torch_is_loaded(tmp_path):
    folders = [f"hydra.{mode}.dir={tmp_path}/{mode}" for mode in ("run", "sweep")]
    calls = [[*folders, "-m", "seed=0,1", "rounds=-1"], ["nodes=3", "--help"]]
    calls.append([*folders, "engine=ray", "network=lte"])
    done = subprocess.run(
        [sys.executable, "-c", CALL, json.dumps(calls)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sweep, shown, engine = map(json.loads, done.stdout.splitlines())
    assert [code for code, *_ in (sweep, shown, engine)] == [2, 0, 2]
    assert (sweep[3], shown[3]) == ([], [])
    assert "torch" not in engine[3]
    assert sweep[2].count("error: rounds must be a number of at least 1") == 2
    assert "2 of 2 jobs failed" in sweep[2]
    assert "nodes: 3\n" in shown[1]
    assert "fedavg_f2i_both, " in shown[1]
    assert "conf/network/" not in shown[2]
    assert {line.split()[0] for line in shown[1].splitlines() if line.strip()} >= GROUPS


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ENOSPC, 1), (errno.EIO, 1), (errno.ENOENT, 2), (errno.EACCES, 2), (errno.ENOTDIR, 2)],
)
def test_a_full_disk_is_no_mistake_of_the_user(number, code, monkeypatch, capsys):
    """`keep` resumes a run after 1, and not after 2."""
    monkeypatch.setenv("EDGEWIRE_FULL_ERROR", "")
    with pytest.raises(Failed) as failed, clear_errors():
        raise OSError(number, "why", "here")
    assert (failed.value.code, capsys.readouterr().err) == (code, "error: here: why\n")
