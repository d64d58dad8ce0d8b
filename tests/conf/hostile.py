"""Targets, values and overrides that a hostile server might submit to reach a node's machine.

BAIT stands for a file that must not change, SECRET for an environment variable's name.
"""

import copy
import functools
import json

import pytest
from omegaconf import OmegaConf

from edgewire.conf.classes import KINDS
from edgewire.conf.load import load_config
from edgewire.conf.schema import ConfigError
from tests.runs import composed

SECRET, HIDDEN = "EDGEWIRE_TEST_SECRET", "hunter2-of-this-node"
RUN = {"_target_": "torch.utils.collect_env.run", "command": "echo >> BAIT"}
OPEN = {"_target_": "builtins.open", "file": "BAIT", "mode": "w"}

# Names that a server may send in place of a class name; many would do harm if they were called.
NAMES = [
    *("os.system", "posix.system", "shutil.rmtree", "pathlib.Path.unlink", "subprocess.Popen"),
    *("builtins.eval", "builtins.open", "builtins.__import__", "builtins.dict", "pickle.loads"),
    *("importlib.import_module", "functools.partial", "hydra.utils.instantiate", "torch.load"),
    *("omegaconf.OmegaConf.load", "torch.utils.collect_env.run", "torch.ops.load_library"),
    # objects that modules of the project or of libraries have imported, or that are for others
    *("edgewire.task.datasets.os.system", "edgewire.task.datasets.folder.Path.rmdir"),
    *("edgewire.task.process.ctypes.CDLL", "edgewire.task.partition.copy"),
    *("edgewire.task.datasets.folder.load_folder", "edgewire.task.models.parts.register"),
    *("edgewire.conf.load.compose_config", "edgewire.conf.trust.mark_as_local"),
    *("edgewire.conf.check.build", "edgewire.command.job.run", "edgewire.strategy.app.main"),
    *("edgewire.simulation.local.run_local", "edgewire.engines.ray.run_on_ray"),
    *("edgewire.engines.superlink.run_on_superlink", "edgewire.strategy.run.run_log.os.replace"),
    *("flwr.serverapp.strategy.FedAvg.start", "flwr.serverapp.strategy.strategy.time.sleep"),
    *("flwr.serverapp.strategy.fedavg.FedAvg", "flwr_datasets.FederatedDataset"),
    *("torch.optim.sgd.SGD", "torch.optim.optimizer.os.system", "torch.optim.SGD.__init__"),
    *("torch.optim.lr_scheduler.warnings.warn", "torch.optim.swa_utils.AveragedModel"),
    # names that are not valid
    *("", ".", "..", "os", "system", "__main__.app", "_", "torch.optim.", ".torch.optim.SGD"),
    *("torch..optim.SGD", "torch.optim.SGD ", "torch.optim.SGD\n", "torch/optim/SGD"),
    *("torch.optim._SGD", "torch.optim.__dict__", "torch.optim.SGD()", "file:///etc/passwd"),
    *("${oc.env:SECRET}", "???", "torch.optim.${oc.env:SECRET}"),
]  # fmt: skip

# Valid groups, each with a value that does not belong there.
SGD = {"_target_": "torch.optim.SGD", "_partial_": True}
AVERAGING = {"_target_": "edgewire.strategy.synchronous.SparseAveraging", "_partial_": True}
ASYNCHRONOUS = {"_target_": "edgewire.strategy.asynchronous.Asynchronous", "_partial_": True}
COSINE = {"_target_": "torch.optim.lr_scheduler.CosineAnnealingLR", "_partial_": True, "T_max": 9}
IID = {"_target_": "flwr_datasets.partitioner.IidPartitioner", "num_partitions": 2}
OWN_SGD = {"_target_": "edgewire.task.optimizers.SGD"}
WRAPPER = "flwr.serverapp.strategy.DifferentialPrivacyServerSideFixedClipping"
GROUPS = [
    *((group, harm) for group in KINDS for harm in (RUN, OPEN)),
    ("optimizer", {**SGD, "momentum": RUN}),
    ("optimizer", {**SGD, "momentum": [RUN]}),
    ("optimizer", {**SGD, "momentum": {"deep": {"deeper": RUN}}}),
    ("optimizer", {**SGD, "_args_": [RUN]}),
    ("optimizer", {**SGD, "_partial_": "${oc.env:SECRET}"}),
    ("optimizer", {**SGD, "__class__": "x"}),
    ("optimizer", [RUN]),
    ("optimizer", COSINE),
    ("optimizer", OWN_SGD),
    ("schedule", SGD),
    ("schedule", {"_target_": "torch.optim.lr_scheduler.LambdaLR", "lr_lambda": RUN}),
    ("schedule", {"_target_": "torch.optim.lr_scheduler.LambdaLR", "lr_lambda": [COSINE]}),
    ("strategy", IID),
    ("strategy", OWN_SGD),
    ("strategy", {**AVERAGING, "optimizer": RUN}),
    ("strategy", {**AVERAGING, "optimizer": SGD}),
    ("strategy", {**AVERAGING, "optimizer": {**OWN_SGD, "lr": RUN}}),
    ("strategy", {**AVERAGING, "optimizer": {**OWN_SGD, "_partial_": True}}),
    ("strategy", {**AVERAGING, "uplink": OPEN}),
    ("strategy", {**ASYNCHRONOUS, "staleness": RUN}),
    ("strategy", {**ASYNCHRONOUS, "staleness": OWN_SGD}),
    ("strategy", {"_target_": WRAPPER, "strategy": RUN}),
    ("strategy", {"_target_": WRAPPER, "strategy": SGD}),
    ("partition", {**IID, "num_partitions": OPEN}),
    ("partition", {"_target_": "edgewire.task.partition.Partition"}),
]

# Values for any key that ask OmegaConf or Hydra for data of this machine.
ASKING = [
    "${oc.env:SECRET}", "${oc.env:SECRET,x}", "x${oc.env:SECRET}y", "${oc.decode:${oc.env:SECRET}}",
    "${oc.create:${oc.env:SECRET}}", "\\${oc.env:SECRET}", "${lr}${oc.env:SECRET}",
    "${${oc.env:SECRET}}", "${oc.select:x,${oc.env:SECRET}}", "${hydra:runtime.cwd}",
    "${oc.dict.keys:strategy}", "$${lr}{oc.env:SECRET}", "${oc.env:SECRET", "${now:%Y}",
    "${ oc.env:SECRET }", "${.${oc.env:SECRET}}", "${python_version:micro}",
]  # fmt: skip

WORDS = [
    "hydra.searchpath=[file:///tmp]", "hydra.run.dir=BAIT", "+hydra.x=1", "++hydra.job.name=x",
    "hydra/launcher=basic", "hydra/job_logging=default", "~hydra.run", "hydra.verbose=true",
    "model@hydra.run=mlp", "+model@hydra=mlp", "model@a.hydra.b=mlp", "--config-dir=/tmp",
    "--config-path=/tmp", "-cd", "--multirun", "strategy=../../../../etc/hosts", "model=/etc/hosts",
    "+experiment=../algorithm/dgc", "dataset=file:///etc/hosts", "strategy=[../x]",
    "strategy/optimizer=../../x", "device=${oc.env:SECRET}", "device=$\\{oc.env:SECRET\\}",
    "device='${oc.env:SECRET}'", 'device="\\${oc.env:SECRET}"', "model=${oc.env:SECRET}",
    "model=$\\{oc.env:SECRET\\}", "+strategy.x=${oc.env:SECRET}", "+x={a:[$\\{oc.env:SECRET\\}]}",
    "device=str(${oc.env:SECRET})", "lr=0.1,0.2", "lr=choice(1,2)", "model=glob(*)",
    "seed=range(1,9)", "compression.exact=['${oc.env:SECRET}']",
    "strategy._target_=torch.utils.collect_env.run",
    "+optimizer._args_=[x]", "optimizer={_target_:builtins.open,file:BAIT,mode:w}",
    "+strategy.optimizer={_target_:torch.utils.collect_env.run,command:'echo >> BAIT'}",
    "++partition._target_=os.system", "schedule._target_=edgewire.task.datasets.folder.os.system",
    "dataset.root=/etc", "dataset.root='~'", "dataset.root=../..", "dataset.root=a/../../b",
    "+a.${oc.env:SECRET}=1", "'", "\\", "=", "~", "@", "a@b@c=1", "a-b=1",
]  # fmt: skip

PATHS = [
    "/", "/etc", "//etc", "/etc/../etc", "~", "~root", "~/x", "..", "../x", "a/../..", "a/../b",
    "./../x", "a/b/../../..", "x\0y", "out", "out/x", "out/../in", "loop", "loop/x",
    "in/out", "chain", "chain/x", "in/../../x", "..//", "/proc/self/environ",
]  # fmt: skip


def put(value, bait):
    """Return a value with BAIT replaced by a file's path, and SECRET by a variable's name."""
    if isinstance(value, str):
        return value.replace("BAIT", str(bait)).replace("SECRET", SECRET)
    if isinstance(value, dict):
        return {put(key, bait): put(each, bait) for key, each in value.items()}
    return [put(each, bait) for each in value] if isinstance(value, list) else value


def plain(*words):
    """Return a composed configuration as plain containers, as an honest server sends it."""
    return copy.deepcopy(_plain(words))


@functools.cache
def _plain(words):
    return OmegaConf.to_container(composed(*words), resolve=True)


def submitted(config, output=""):
    """Return the `run_config` of a submitted configuration."""
    return {"config": json.dumps(config), "output": output}


def refused(config, node_config=None):
    """Assert that a configuration is refused in one line without a secret; return the line."""
    with pytest.raises(ConfigError) as caught:
        load_config(submitted(config), 2, node_config)
    told = str(caught.value)
    assert HIDDEN not in told
    assert "\n" not in told
    assert len(told) < 600
    return told
