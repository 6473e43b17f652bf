"""Llama (Touvron et al. 2023; grouped queries as in Llama 2 and 3) as plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    """Scaled by the root of the mean of the squares."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x, cos, sin):
    """Rotary position embeddings of x (batch, heads, length, size)."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Attention(nn.Module):
    """Causal attention, in which groups of queries share keys and values."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.wq = nn.Linear(width, heads * self.size, bias=False)
        self.wk = nn.Linear(width, groups * self.size, bias=False)
        self.wv = nn.Linear(width, groups * self.size, bias=False)
        self.wo = nn.Linear(heads * self.size, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q = self.wq(x).view(batch, length, self.heads, self.size).transpose(1, 2)
        k = self.wk(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        v = self.wv(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k = k.repeat_interleave(self.heads // self.groups, dim=1)
        v = v.repeat_interleave(self.heads // self.groups, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    """A SwiGLU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Attention, then the feed-forward network, each after a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, groups)
        self.feed_forward = FeedForward(width, hidden)
        self.attention_norm = RMSNorm(width)
        self.ffn_norm = RMSNorm(width)

    def forward(self, x, cos, sin):
        h = x + self.attention(self.attention_norm(x), cos, sin)
        return h + self.feed_forward(self.ffn_norm(h))


class Llama(nn.Module):
    """A language model: token ids to the logits of the next token."""

    def __init__(self, vocabulary=256, width=64, heads=4, groups=2, hidden=172, layers=4, theta=10000.0) -> None:
        super().__init__()
        self.size, self.theta = width // heads, theta
        self.tok_embeddings = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList([Block(width, heads, groups, hidden) for _ in range(layers)])
        self.norm = RMSNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        frequencies = self.theta ** (-torch.arange(0, self.size, 2, device=tokens.device) / self.size)
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device), frequencies)
        angles = torch.cat([angles, angles], dim=-1)
        cos, sin = angles.cos(), angles.sin()
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, cos, sin)
        return self.output(self.norm(h))


def example_inputs():
    return (torch.randint(0, 256, (2, 16)),)
