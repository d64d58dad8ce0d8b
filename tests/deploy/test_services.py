"""The systemd units and the image use existing options; the units, the hardening of systemd."""

import json
import shlex
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from inspect import signature

import pytest
import yaml

from edgewire.deploy import node
from edgewire.deploy.device.heartbeats import Membership
from edgewire.deploy.monitoring import metrics
from edgewire.deploy.server import server
from tests.runs import ROOT

FOLDER = ROOT / "edgewire" / "deploy" / "systemd"
UNITS = {"node": node, "server": server}


def lines_of(name):
    """Return a unit's lines; continued lines are joined."""
    text = (FOLDER / f"edgewire-{name}.service").read_text()
    return text.replace("\\\n", " ").splitlines()


def unit(name):
    """Return a unit's settings as lists, because a setting may occur several times."""
    found = {}
    for line in lines_of(name):
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("name", UNITS)
def test_a_program_accepts_the_options_of_its_unit(name):
    (command,) = unit(name)["ExecStart"]
    python, *words = shlex.split(command)
    assert python == "/opt/edgewire/.venv/bin/python"
    assert words[:2] == ["-m", f"edgewire.deploy.{name}"]
    words = [word for word in words[2:] if word != "$NODE_OPTIONS"]  # the device's owner adds them
    given = UNITS[name].parser().parse_args(words)  # an unknown option would end the program
    state = f"/var/lib/edgewire-{name}/"
    assert str(given.state).startswith(state)
    assert unit(name)["StateDirectory"][0].split()[0] == f"edgewire-{name}"
    assert not given.insecure


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_provides_the_files_of_its_program(name):
    said = unit(name)
    command = " ".join(said["ExecStart"][0].split())
    handed = {each.partition(":")[0] for each in said["LoadCredential"]}
    if name == "server":
        assert handed == {"server.key"}
        assert "--keys /etc/edgewire --key ${CREDENTIALS_DIRECTORY}/server.key" in command
    else:
        assert handed == {"node.key"}
        assert "${CREDENTIALS_DIRECTORY}/node.key" in command
    assert not any("ca.key" in each for each in said["LoadCredential"])


@pytest.mark.parametrize("name", UNITS)
def test_a_service_restarts_waits_for_the_clock_and_is_restricted(name):
    said = {key: " ".join(values) for key, values in unit(name).items()}
    assert said["Restart"] == "always"
    assert int(said["RestartSec"]) > 0
    assert said["StartLimitIntervalSec"] == "0"
    for target in ("time-sync.target", "network-online.target"):
        assert target in said["After"].split()
        assert target in said["Wants"].split()
    for limit in ("MemoryMax", "CPUQuota"):
        assert said[limit].endswith("%")
    assert said["ProtectSystem"] == "strict"
    for switch in ("DynamicUser", "NoNewPrivileges", "PrivateTmp", "RestrictSUIDSGID"):
        assert said[switch] == "yes"
    assert said["CapabilityBoundingSet"] == ""
    assert (said["Type"], said["WatchdogSec"]) == ("notify", "120")
    beats = signature(Membership).parameters["beats"].default
    assert int(said["WatchdogSec"]) > 4 * max(beats, metrics.PINGS)
    assert int(said["TimeoutStartSec"]) > 300  # on a twentieth of a core Flower's import takes 60 s
    assert said["LimitCORE"] == "0"  # a copy of the memory would hold the key
    assert "PYTHONFAULTHANDLER=1" in said["Environment"].split()
    assert "OMP_NUM_THREADS=1" in said["Environment"].split()
    assert RawConfigParser(strict=False).read(FOLDER / f"edgewire-{name}.service")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("name", [*UNITS, "run@"])
def test_systemd_accepts_the_unit(name, tmp_path):
    text = (FOLDER / f"edgewire-{name}.service").read_text()
    made = tmp_path / f"edgewire-{name.replace('@', '@kitchen')}.service"
    made.write_text(text.replace("/opt/edgewire/.venv/bin/python", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(made)], capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_image_has_what_the_server_needs():
    folder = ROOT / "edgewire" / "deploy" / "image"
    lines = (folder / "Dockerfile").read_text().replace("\\\n", "").splitlines()
    (command,) = [line for line in lines if line.startswith("CMD ")]
    module, *words = json.loads(command.removeprefix("CMD "))
    assert module == "edgewire.deploy.server"
    given = server.parser().parse_args(words)  # an unknown option would end the program
    (volumes,) = [line for line in lines if line.startswith("VOLUME ")]
    used = {str(given.keys), str(given.state), str(given.data)}
    assert used == set(json.loads(volumes.removeprefix("VOLUME ")))
    service = yaml.safe_load((folder / "compose.yml").read_text())["services"]["server"]
    assert (folder / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]) == folder / "Dockerfile"
    assert {each.partition(":")[2] for each in service["volumes"]} == used
    taken = (folder / "Dockerfile.dockerignore").read_text().splitlines()
    names = {line.removeprefix("!") for line in taken if line.startswith("!")}
    links = {each.name for each in (ROOT / "edgewire").iterdir() if each.is_symlink()}
    assert {"run.py", "pyproject.toml", "edgewire", *links} <= names
    assert all((ROOT / name).exists() for name in names)
