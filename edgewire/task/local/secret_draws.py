"""Random numbers for differential privacy, at nodes and at the server.

Nobody can compute them from others of them, nor from the run's seed. They are made of the key
stream of ChaCha20 with a new key of 256 bits from the system's generator. A seed of 64 bits could
be found by trying all, and two of 2^32 nodes' seeds would probably be equal: then the difference of
their updates has no noise.
"""

import math
import os

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor


def uniform(size: int) -> Tensor:
    """Return numbers between 0 and 1, float64 (size,): multiples of 2^-53, plus 2^-54."""
    stream = Cipher(ChaCha20(os.urandom(32), bytes(16)), mode=None).encryptor()
    bits = np.frombuffer(stream.update(bytes(8 * size)), np.uint64) >> np.uint64(11)
    return torch.from_numpy(bits.astype(np.float64)).add_(0.5).mul_(2.0**-53)


def normal(size: int) -> Tensor:
    """Return standard normal numbers, float64 (size,), by the Box-Muller transform."""
    half = (size + 1) // 2
    radius = uniform(half).log_().mul_(-2).sqrt_()
    angle = uniform(half).mul_(2 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:size]
