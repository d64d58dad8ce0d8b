"""Light nodes do what nodes do; the command lists its cases; the probe sees a busy event loop."""

import asyncio
import gzip
import json
import os
import shutil
import time

import pytest
import yaml
from flwr.app import Message, RecordDict
from flwr.proto.fab_pb2 import GetFabResponse

from edgewire.protocol.choose_grid import bundled
from papers.benchmarks.devices.fleet import case_soak
from papers.benchmarks.devices.fleet.__main__ import main
from papers.benchmarks.devices.fleet.case_alerts import FAULTS, RULES, with_fault
from papers.benchmarks.devices.fleet.light_nodes import all_online, write_registered
from papers.benchmarks.devices.fleet.probed_server import most, probe
from papers.benchmarks.devices.fleet.soak_faults import SoakFaults
from tests.deploy.served import Server

APP = b"an app" * 10000


def test_an_unknown_case_gives_one_line_and_the_cases(capsys):
    assert main(["no_such"]) == 2
    assert capsys.readouterr().err.startswith("error: there is no case no_such: ")
    assert main([]) == 2
    assert "Cases: alerts, comeback, downloads, " in capsys.readouterr().out


def test_light_nodes_get_messages_and_the_app(tmp_path):
    nodes = write_registered(3, tmp_path / "nodes.json")

    async def fetched(node):
        found = await node.message()
        body = await node.app_of(found.messages_list[0].metadata.run_id)
        return GetFabResponse.FromString(gzip.decompress(body)).fab.content

    async def apps(server):
        for each in nodes:
            each.connect(server.place[1], None)
        await all_online(nodes)
        grid = bundled(server.begin_run(APP))
        grid.push_messages(Message(RecordDict(), each.number, "query") for each in nodes)
        try:
            return await asyncio.gather(*(fetched(each) for each in nodes))
        finally:
            for each in nodes:
                each.connection.close()

    with Server(nodes=tmp_path / "nodes.json") as server:
        assert asyncio.run(asyncio.wait_for(apps(server), 60)) == [APP] * 3


def test_the_probe_finds_the_longest_pause(tmp_path):
    async def main():
        task = asyncio.create_task(probe(tmp_path / "probed"))
        await asyncio.sleep(0.1)
        time.sleep(0.3)  # the loop waits, and takes no processor time
        await asyncio.sleep(1.5)
        task.cancel()

    began = time.monotonic()
    asyncio.run(main())
    found = most(tmp_path / "probed", began, time.monotonic())
    assert 0.25 < found["gap"] < 1.2
    assert found["cpu"] < 0.2
    lines = (tmp_path / "probed").read_text().splitlines()
    assert all(json.loads(each).keys() == {"at", "gap", "cpu"} for each in lines)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool here")
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.few(1)
def test_each_alert_fires_on_its_fault_and_no_other_does(fault):
    if fault == "disk full" and os.geteuid():
        pytest.skip("only root may mount a small disk")
    found = with_fault(fault)
    assert found["ok"], found


def test_every_alert_has_a_fault():
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    expected = set().union(*(alerts for _, _, alerts in FAULTS.values()))
    assert {each["alert"] for each in rules} == expected


@pytest.mark.system
def test_a_run_survives_random_faults(tmp_path):
    kinds = ",".join(kind for kind in SoakFaults.kinds() if not kind.endswith("_is_full"))
    words = ["--minutes", "0.4", "--rounds", "40", "--nodes", "2", "--most", "240"]
    words += ["--pause", "4", "--longest", "5", "--seed", "1", "--kinds", kinds]
    found = case_soak.measured([*words, "--keep", str(tmp_path / "soak")])
    assert found["faults"] > 4
    assert found["rounds"] == 40 * found["runs"]
    assert found["open"] == []
