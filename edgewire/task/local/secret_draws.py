"""Random numbers for differential privacy, at nodes and at the server."""

import math
import os

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor


class SecretDraws:
    """Random numbers that nobody can compute from others of them, nor from the run's seed.

    They are made of the key stream of ChaCha20 with a new key of 256 bits from the system's
    generator. A seed of 64 bits could be found by trying all, and two of 2^32 nodes' seeds would
    probably be equal: then the difference of their updates has no noise.
    """

    def __init__(self) -> None:
        cipher = Cipher(ChaCha20(os.urandom(32), bytes(16)), mode=None)
        self._stream = cipher.encryptor()

    def uniform(self, size: int) -> Tensor:
        """Return numbers between 0 and 1, float64 (size,): multiples of 2^-53, plus 2^-54."""
        bits = np.frombuffer(self._stream.update(bytes(8 * size)), np.uint64) >> np.uint64(11)
        return torch.from_numpy(bits.astype(np.float64)).add_(0.5).mul_(2.0**-53)

    def normal(self, size: int) -> Tensor:
        """Return standard normal numbers, float64 (size,), by the Box-Muller transform."""
        half = (size + 1) // 2
        radius = self.uniform(half).log_().mul_(-2).sqrt_()
        angle = self.uniform(half).mul_(2 * math.pi)
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:size]
