"""What a node is told of its training, and what it measures: the keys of both, said once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

# Metrics of an answer. Beside these, `task.steps.Evaluation` has those of an evaluation.
LOSS = "loss"  # mean over the samples; read by servers, and by codecs that steer by it
EXAMPLES = "num-examples"  # samples that the update was made from; read by servers
STEPS = "num-steps"  # local steps it took; read by servers, and by the virtual clock
SECONDS = "seconds"  # real ones that the node has worked; read by servers
DRIFT = "drift"  # distance of the node's own model from the server's (CE-SGD's line 7)


@dataclass(frozen=True)
class Orders:
    """Read by the node's ClientApp from a message's `config`.

    `lr`: the learning rate; `number`: of the update, from 1: the round, or how many messages this
    node was sent: a node's draws come from it; `proximal_mu`: the pull towards the model received.
    """

    lr: float
    number: int
    proximal_mu: float = 0.0

    def config(self) -> dict[str, float | int]:
        """Return the message's keys and values."""
        proximal = {"proximal-mu": self.proximal_mu} if self.proximal_mu else {}
        return {"lr": self.lr, "number": self.number, **proximal}

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Orders:
        """Read what our servers have written, or Flower's strategies (`server-round`)."""
        number = config["number"] if "number" in config else config["server-round"]
        mu = cast(float, config.get("proximal-mu", 0.0))
        return cls(cast(float, config["lr"]), cast(int, number), mu)
