"""Networks as ordinary PyTorch programs: a GPT-2, a ResNet-18, an LSTM and Hugging Face's GPT-2, each with its loss and
optimizer.

None of this knows of tensorgraft. `networks_by_hand` has the same in JAX.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Work:
    """A network, a batch of it, and how it learns."""

    name: str
    model: nn.Module
    inputs: Tensor
    targets: Tensor
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]

    def on(self, device: torch.device | str) -> Work:
        """The same on a device; a module is moved in place, as PyTorch does."""
        return Work(self.name, self.model.to(device), self.inputs.to(device), self.targets.to(device), self.optimizer)

    def inference(self) -> Callable[[], Tensor]:
        """(inputs) -> outputs in evaluation mode."""
        self.model.eval()

        def infer(inputs: Tensor) -> Tensor:
            with torch.no_grad():
                return self.model(inputs)

        return infer

    def training_step(self) -> Callable[[Tensor, Tensor], Tensor]:
        """(inputs, targets) -> loss; the parameters learn."""
        model, optimizer = self.model.train(), self.optimizer(self.model)

        def step(inputs: Tensor, targets: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=5e-4)


# ---- GPT -------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, words: int = 512, length: int = 256, width: int = 384, heads: int = 6, layers: int = 6) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.02)
        self.head.weight = self.token.weight  # tied, as in GPT-2

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt(batch: int = 2, words: int = 512, length: int = 256, width: int = 384, heads: int = 6, layers: int = 6) -> Work:
    torch.manual_seed(0)
    tokens = torch.randint(words, (batch, length + 1))
    model = GPT(words, length, width, heads, layers)
    return Work("GPT-2", model, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), adamw)


class Public(nn.Module):
    """A language model of transformers that gives its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


def gpt2(batch: int = 2, words: int = 1000, length: int = 64, width: int = 256, layers: int = 4) -> Work:
    """The one that people use, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=words, n_positions=2 * length, n_embd=width, n_layer=layers, n_head=4, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=0, eos_token_id=None,
    )  # fmt: skip
    tokens = torch.randint(words, (batch, length + 1))
    model = Public(GPT2LMHeadModel(config))
    return Work("GPT-2", model, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), adamw)


# ---- ResNet ----------------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut = None
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet18(nn.Module):
    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
        pairs = itertools.pairwise(widths)
        self.blocks = nn.Sequential(*(Residual(c, o, 1 if c == o else 2) for c, o in pairs))
        self.classify = nn.Linear(512, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(images))), 3, 2, 1)
        return self.classify(self.blocks(x).mean((2, 3)))


def resnet(batch: int = 8, size: int = 64) -> Work:
    torch.manual_seed(0)
    return Work("ResNet-18", ResNet18(), torch.randn(batch, 3, size, size), torch.randint(1000, (batch,)), sgd)


# ---- LSTM ------------------------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, words: int = 128, hidden: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.token = nn.Embedding(words, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, words)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.token(tokens))[0])


def lstm(batch: int = 16, length: int = 128) -> Work:
    torch.manual_seed(0)
    tokens = torch.randint(128, (batch, length + 1))
    return Work("LSTM", Recurrent(), tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), adamw)


# ---- a public model --------------------------------------------------------------------------------------------------


class Logits(nn.Module):
    """A language model of `transformers` without dropout, as a function of tokens to logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens, use_cache=False).logits


def public_gpt(
    batch: int = 2, words: int = 8192, length: int = 256, width: int = 384, heads: int = 6, layers: int = 6
) -> Work:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(vocab_size=words, n_positions=length, n_embd=width, n_layer=layers, n_head=heads,
                        bos_token_id=None, eos_token_id=None, **dropout)  # fmt: skip
    tokens = torch.randint(words, (batch, length + 1))
    model = Logits(GPT2LMHeadModel(config))
    return Work("transformers' GPT-2", model, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), adamw)


WORKS: dict[str, Callable[[], Work]] = {
    "GPT-2": gpt,
    "ResNet-18": resnet,
    "LSTM": lstm,
    "transformers' GPT-2": public_gpt,
}
