"""Models in plain torch, so that a GPU machine needs no other package."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    hidden: int
    layers: int
    mlp: int
    heads: int
    vocab: int
    batch: int
    sequence: int


SHAPES = {
    "125m": Shape(hidden=768, layers=12, mlp=2048, heads=12, vocab=32000, batch=8, sequence=1024),
    "1.3b": Shape(hidden=2048, layers=24, mlp=5504, heads=16, vocab=32000, batch=4, sequence=1024),
    "small": Shape(hidden=64, layers=2, mlp=176, heads=2, vocab=256, batch=2, sequence=16),
}


class Attention(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden, bias=False)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x, cosine, sine):
        batch, length, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, hidden))


def rotate(x, cosine, sine):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.norm1 = nn.RMSNorm(shape.hidden)
        self.attention = Attention(shape)
        self.norm2 = nn.RMSNorm(shape.hidden)
        self.gate = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.up = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.down = nn.Linear(shape.mlp, shape.hidden, bias=False)

    def forward(self, x, cosine, sine):
        x = x + self.attention(self.norm1(x), cosine, sine)
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Returns the mean next-token loss."""

    def __init__(self, shape):
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm = nn.RMSNorm(shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        with torch.no_grad():
            for param in self.parameters():
                if param.dim() > 1:
                    param.normal_(std=0.02)
        width = shape.hidden // shape.heads
        angles = torch.outer(torch.arange(shape.sequence), 10000.0 ** (-torch.arange(0, width, 2) / width))
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, ids):
        x = self.embedding(ids)
        cosine, sine = self.cosine.to(x.dtype), self.sine.to(x.dtype)
        for layer in self.layers:
            x = layer(x, cosine, sine)
        logits = self.head(self.norm(x))[:, :-1]
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
        return SimpleNamespace(loss=loss)


class Wide(nn.Module):
    """Small layers, each a unit of its own: nothing but what each unit costs. Returns a loss."""

    def __init__(self, units, hidden=64):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(hidden, hidden) for _ in range(units)])

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x) / len(self.layers)
        return SimpleNamespace(loss=x.float().square().mean())


def build(make, device, seed=1234):
    """What `make` returns, in fp32 and made on the device; its values depend on the seed and the device alone."""
    torch.manual_seed(seed)
    with device:
        return make().train()


def tokens(shape, device, step):
    """Four batches, again and again."""
    generator = torch.Generator().manual_seed(77 + step % 4)
    return torch.randint(shape.vocab, (shape.batch, shape.sequence), generator=generator).to(device)
