"""Secure sum: a server adds the nodes' integer vectors and learns nothing but the total.

The protocol is that of Bonawitz et al. 2017 (https://doi.org/10.1145/3133956.3133982, Figure 4)
with double masks, the complete graph, a threshold of two thirds and no consistency round. `Member`
is a node's side, `Coordinator` the server's. It needs `cryptography`, but no torch and no Flower.
"""

from .coordinator import Coordinator
from .member import Member
from .packing import Packing
from .terms import Peer, Roster, SecureError, Terms, binding, threshold_of

__all__ = [
    "Coordinator",
    "Member",
    "Packing",
    "Peer",
    "Roster",
    "SecureError",
    "Terms",
    "binding",
    "threshold_of",
]
