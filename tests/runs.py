"""What tests that run the command share: a quick run, and its result."""

import json

QUICK = ["rounds=3", "engine.workers=1"]


def result_of(folder):
    return json.loads((folder / "result.json").read_text())
