"""The peers' training step in PyTorch, so that the benchmark can put both into one run on one core.

Block diffusion as SDAR trains it (arXiv 2510.06303): Qwen3 on [noisy ; clean], one boolean mask of (2L)^2 for
`scaled_dot_product_attention`, the masked tokens alone through the head, fused AdamW, eager. PyTorch is no dependency
of this project: without it the comparison is with the recorded speed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from maskworld.config import ModelConfig


def peer_available() -> bool:
    """Whether PyTorch can be imported."""
    return importlib.util.find_spec("torch") is not None


def peer_call(config: ModelConfig, vocabulary_size: int, rows: int, length: int, block_length: int) -> Callable:
    """A call that takes one training step of `rows` rows of L random tokens, every one a target; returns the loss."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = _model(config, vocabulary_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(8, vocabulary_size, (rows, length))
    mask = _doubled_mask(length, block_length).expand(rows, 1, -1, -1)
    frequency = config.rope_theta ** (-torch.arange(0, config.head_size, 2).float() / config.head_size)
    angle = (torch.arange(length).repeat(2)[:, None] * frequency).repeat(1, 2)
    turn = angle.cos(), angle.sin()

    def step() -> float:
        rate = torch.rand(rows, 1) * 0.999 + 0.001
        masked = torch.rand(rows, length) < rate
        noisy = torch.where(masked, 1, tokens)
        logits = model(torch.cat([noisy, tokens], 1), turn, mask, masked)
        loss = functional.cross_entropy(logits, tokens[masked], reduction="none")
        loss = (loss / rate.expand(rows, length)[masked]).sum() / tokens.numel()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    step.parameters = sum(parameter.numel() for parameter in model.parameters())
    return step


def _doubled_mask(length: int, block_length: int):
    """[1, 1, 2L, 2L], noisy half first; True is seen."""
    import torch

    block = torch.arange(length) // block_length
    query, key = block[:, None], block[None, :]
    noisy = torch.cat([query == key, query > key], 1)
    clean = torch.cat([torch.zeros(length, length, dtype=torch.bool), query >= key], 1)
    return torch.cat([noisy, clean], 0)[None, None]


def _model(config: ModelConfig, vocabulary_size: int):
    """The same decoder as `models.transformer`, with an untied head."""
    import torch
    from torch import nn
    from torch.nn import functional

    size, repeats = config.head_size, config.heads // config.kv_heads

    def linear(inputs: int, outputs: int) -> nn.Linear:
        return nn.Linear(inputs, outputs, bias=False)

    class Norm(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x):
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config.norm_epsilon))

    def rotate(x, turn):
        first, second = x.chunk(2, -1)
        return x * turn[0] + torch.cat((-second, first), -1) * turn[1]

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            width, inner = config.width, config.feed_forward
            self.query = linear(width, config.heads * size)
            self.key, self.value = (linear(width, config.kv_heads * size) for _ in range(2))
            self.out = linear(config.heads * size, width)
            self.query_norm, self.key_norm = Norm(size), Norm(size)
            self.attention_norm, self.feed_forward_norm = Norm(width), Norm(width)
            self.gate, self.up, self.down = linear(width, inner), linear(width, inner), linear(inner, width)

        def forward(self, x, turn, mask):
            def heads(y):
                return y.view(*y.shape[:2], -1, size)

            normal = self.attention_norm(x)
            query = rotate(self.query_norm(heads(self.query(normal))).transpose(1, 2), turn)
            key = rotate(self.key_norm(heads(self.key(normal))).transpose(1, 2), turn)
            value = heads(self.value(normal)).transpose(1, 2)
            key, value = (part.repeat_interleave(repeats, 1) for part in (key, value))
            out = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
            x = x + self.out(out.transpose(1, 2).flatten(2))
            normal = self.feed_forward_norm(x)
            return x + self.down(functional.silu(self.gate(normal)) * self.up(normal))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(vocabulary_size, config.width)
            self.layers = nn.ModuleList(Layer() for _ in range(config.layers))
            self.norm, self.head = Norm(config.width), linear(config.width, vocabulary_size)
            for parameter in self.parameters():
                if parameter.ndim == 2:
                    nn.init.normal_(parameter, std=config.initializer_std)

        def forward(self, tokens, turn, mask, masked):
            x = self.embedding(tokens)
            for layer in self.layers:
                x = layer(x, turn, mask)
            return self.head(self.norm(x[:, : masked.shape[1]])[masked])

    return Decoder()
