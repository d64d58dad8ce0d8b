"""Makes runs of five nodes with a given learning curve."""

from tests.report.sweeps import add_job

MB = 1_000_000
NODES = 5


def curve(values, up, down, key="accuracy", steps=4):
    """Return the history of a run: one round per value, `up` and `down` bytes in a round."""
    return [
        {"round": n, key: value, "uplink_bytes": n * up, "downlink_bytes": n * down,
         "virtual_seconds": n * steps * 0.01}
        for n, value in enumerate(values)
    ]  # fmt: skip


def add_run(folder, overrides, values, up, down, key="accuracy", **result):
    """Write a run of five nodes whose uncompressed messages have 1 MB."""
    rows = curve(values, up * NODES, down * NODES, key)
    rounds = len(values) - 1
    numbers = {
        "rounds": rounds, "client_updates": NODES * rounds, "nodes": NODES,
        "uplink_bytes": up * NODES * rounds, "downlink_bytes": down * NODES * rounds,
        "uplink_bytes_float32": MB * NODES * rounds,
        "downlink_bytes_float32": MB * NODES * rounds,
        "accuracy": values[-1], "best_accuracy": max(v for v in values if v is not None),
    }  # fmt: skip
    add_job(folder, f"{overrides} nodes={NODES}", rows, **(numbers | result))
