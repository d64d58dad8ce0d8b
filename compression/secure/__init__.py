"""Secure sum: a server adds the nodes' integer vectors and learns only the total.

The protocol is Bonawitz et al. 2017 (https://doi.org/10.1145/3133956.3133982, Figure 4) with double
masks and the complete graph, without the round of consistency checks. `Member` is a node's side,
`Coordinator` the server's. It needs the package `cryptography`, but no torch and no Flower.
"""

from .coordinator import Coordinator as Coordinator
from .coordinator import roster_of as roster_of
from .member import Member as Member
from .packing import Packing as Packing
from .terms import Peer as Peer
from .terms import Roster as Roster
from .terms import SecureError as SecureError
from .terms import Terms as Terms
from .terms import binding as binding
from .terms import threshold_of as threshold_of
