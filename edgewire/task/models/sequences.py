"""Language models for tokens, such as characters."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

SPREAD = 0.5  # of the first embeddings; the usual 0.02 takes several times as many steps to learn


class LSTM(nn.Module):
    """A language model with LSTM layers: 28,968 parameters; (B, T) -> logits (B, T, tokens).

    `last`: whether it returns the logits of the token after the last one alone, (B, tokens), as for
    a target that is one class.
    """

    def __init__(
        self,
        tokens: int = 40,
        size: int = 32,
        hidden: int = 64,
        layers: int = 1,
        last: bool = False,
    ) -> None:
        super().__init__()
        self.last = last
        self.embedding = nn.Embedding(tokens, size)
        self.lstm = nn.LSTM(size, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, tokens)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token, or of the last next token."""
        hidden = self.lstm(self.embedding(tokens))[0]
        logits: Tensor = self.head(hidden[:, -1] if self.last else hidden)
        return logits


class Transformer(nn.Module):
    """A causal transformer (GPT-2's blocks, with GELU and a norm before each part).

    (B, T) -> logits (B, T, tokens), for T up to `length`. 33,784 parameters with the defaults.
    `last`: as in `LSTM`.
    """

    def __init__(
        self,
        tokens: int = 40,
        size: int = 48,
        heads: int = 4,
        layers: int = 1,
        length: int = 32,
        last: bool = False,
    ) -> None:
        super().__init__()
        self.last = last
        self.embedding = nn.Embedding(tokens, size)
        self.position = nn.Parameter(torch.randn(length, size) * SPREAD)
        self.blocks = nn.Sequential(*(TransformerBlock(size, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(size)
        self.head = nn.Linear(size, tokens)
        nn.init.normal_(self.embedding.weight, std=SPREAD)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of each next token, or of the last next token."""
        entered = self.embedding(tokens) + self.position[: tokens.shape[1]]
        hidden = self.blocks(entered)
        logits: Tensor = self.head(self.norm(hidden[:, -1] if self.last else hidden))
        return logits


class TransformerBlock(nn.Module):
    """A transformer block: causal attention with `heads` heads, then an MLP of width 4 `size`."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.mlp = nn.Sequential(nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output, of the same shape (B, T, size)."""
        batch, time, size = x.shape
        split = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, size // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, size))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]
