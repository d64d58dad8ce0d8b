"""Makes short runs of cut models: models that are divided into segments on different nodes."""

from safetensors.torch import load_file

import edgewire.client.app
from tests.local_runs import local_run
from tests.runs import history_of, result_of

QUICK = ("algorithm=synthetic_gradients", "rounds=8", "eval_every=4", "batch_size=64")
SPLIT = ("algorithm=split_backprop", "rounds=8", "eval_every=4", "batch_size=64")
LOSSES = (*QUICK, "strategy.module=gradient_of_loss")
AHEAD = (*QUICK, "strategy.schedule=async", "strategy.queue=4", "strategy.segment_every=0")
PIPED = (*SPLIT, "strategy.schedule=pipeline", "strategy.micro_batches=4")


def run(folder, *words, workers=1, app="edgewire.client.app:app"):
    """Run a cut model on the local engine; return its result, history (no seconds) and weights."""
    local_run(folder, *words, workers=workers, client_app=app)
    return result_of(folder), history_of(folder), load_file(folder / "model.safetensors")


def spoiling(change, node=1, times=(3, 4)):
    """Return an app in which `change` modifies the replies of `node` with the numbers `times`."""
    count = {}

    def app(message, context):
        reply = edgewire.client.app.app(message, context)
        here = context.node_config["partition-id"]
        count[here] = count.get(here, 0) + 1
        if here == node and count[here] in times:
            change(reply)
        return reply

    return app
