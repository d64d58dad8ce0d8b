"""Asks the nodes what their rows say of a table's columns, before a run without a table here."""

from __future__ import annotations

import json
from logging import getLogger
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from edgewire.compression.flower.message_size import size_of
from edgewire.compression.flower.node_names import called
from edgewire.compression.flower.traffic import in_one_line
from edgewire.conf.build import table_options
from edgewire.conf.schema import Config, ConfigError
from edgewire.strategy.ordered_grid import OrderedGrid
from edgewire.strategy.run.whole_files import replace_file
from edgewire.task.datasets.table import wished
from edgewire.task.errors import TaskError, listed
from edgewire.task.tables.learn import columns_of
from edgewire.task.tables.survey import Survey, merged, refused

LONGEST_WAIT = 3600.0  # seconds for all replies, if `timeout` says no less
log = getLogger("edgewire")


def survey(grid: OrderedGrid, config: Config, folder: Path) -> None:
    """Ask all nodes, and write `columns.json` and `result.json`, with the bytes, into a folder.

    Nodes that send no survey, or whose columns differ from those of most nodes, are left out with a
    warning. Raises `ConfigError` unless more than half of the nodes are left, and `Problems` for
    columns that cannot be taken.
    """
    nodes = grid.wait_for_nodes()
    messages = [Message(RecordDict(), node, "query.columns") for node in nodes]
    down = sum(size_of(each.content) for each in messages)
    wait = min(config.timeout, LONGEST_WAIT)
    out = dict.fromkeys(nodes, f"no reply within {wait:g} s")
    found, up = dict[int, Survey](), 0
    for reply in grid.send_and_receive(messages, timeout=wait):
        node = reply.metadata.src_node_id
        if reply.has_error():
            out[node] = in_one_line(str(reply.error.reason))
            continue
        up += size_of(reply.content)
        try:
            record = reply.content.config_records.get("columns") or ConfigRecord()
            found[node] = Survey.from_bytes(record.get("survey"))
        except TaskError as error:
            out[node] = str(error)
    wishes = wished(**table_options(config))[1]
    out = {node: why for node, why in out.items() if node not in found} | refused(found)
    lines = [f"{called(node)}: {why}" for node, why in out.items()]
    if 2 * (len(nodes) - len(out)) <= len(nodes):
        raise ConfigError(
            f"{len(nodes) - len(out)} of {len(nodes)} nodes gave columns that most nodes share, "
            f"and more than half are needed: {listed(lines, 5, '; ')}"
        )
    for line in lines:
        log.warning("the columns are those of the other nodes; %s", line)
    whole = merged([each for node, each in found.items() if node not in out])
    columns = columns_of(whole, wishes)
    counts = next((each.counts for each in whole.parts if each.name in wishes.target), {})
    cost: dict[str, Any] = {"nodes": len(nodes) - len(out), "asked": len(nodes)}
    cost |= {"uplink_bytes": up, "downlink_bytes": down}
    cost["classes"] = [counts.get(name, 0) for name in columns.classes]
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**json.loads(columns.to_json()), "survey": cost}, ensure_ascii=False)
    replace_file(folder / "columns.json", text + "\n")
    replace_file(folder / "result.json", json.dumps({"ended": "finished"}) + "\n")
