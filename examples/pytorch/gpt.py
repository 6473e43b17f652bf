"""Train a small character-level GPT on a text file.

python gpt.py --steps 150 --text ../data/text.txt
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

TEXT = Path(__file__).parent.parent / "data" / "text.txt"


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, characters, block=64, width=64, heads=4, layers=2):
        super().__init__()
        self.block = block
        self.token = nn.Embedding(characters, width)
        self.position = nn.Embedding(block, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters, bias=False)
        self.apply(self._initialise)
        self.head.weight = self.token.weight  # one matrix reads and writes characters

    @staticmethod
    def _initialise(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.05)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.token(tokens) + self.position(positions)
        return self.head(self.norm(self.blocks(x)))


def load(path):
    """The characters of a text; its codes, the last tenth held out."""
    text = Path(path).read_text(encoding="utf-8")
    characters = sorted(set(text))
    code = {c: i for i, c in enumerate(characters)}
    codes = torch.tensor([code[c] for c in text])
    split = len(codes) * 9 // 10
    return characters, codes[:split], codes[split:]


def batch(codes, size, block, generator):
    starts = torch.randint(len(codes) - block, (size,), generator=generator)
    windows = torch.stack([codes[s : s + block + 1] for s in starts])
    return windows[:, :-1], windows[:, 1:]


def training(model, lr, steps, warm_up):
    """The learning-rate schedule, and the function that makes one step of training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95))

    def schedule(step):
        if step < warm_up:
            return (step + 1) / warm_up
        return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(steps - warm_up, 1)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)

    def train_step(inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return scheduler, train_step


@torch.no_grad()
def accuracy(model, codes, device, size=16):
    """How often the likeliest next character is the right one, on text that was held out."""
    model.eval()
    block, correct, total = model.block, 0, 0
    windows = codes[: (len(codes) - 1) // block * block + 1]
    inputs, targets = windows[:-1].view(-1, block), windows[1:].view(-1, block)
    for i in range(0, len(inputs) - size + 1, size):
        guesses = model(inputs[i : i + size].to(device)).argmax(-1)
        correct += (guesses == targets[i : i + size].to(device)).sum().item()
        total += guesses.numel()
    model.train()
    return correct / total, total


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="compile the training step")
    parser.add_argument("--save-curve", metavar="FILE", help="write losses, accuracy and step times as JSON")
    args = parser.parse_args()

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    characters, train, test = load(args.text)

    model = GPT(len(characters)).to(device)
    scheduler, train_step = training(model, args.lr, args.steps, args.warm_up)
    if args.compile:
        train_step = torch.compile(train_step)

    losses, times = [], []
    for step in range(args.steps):
        start = time.perf_counter()
        inputs, targets = batch(train, args.batch_size, model.block, generator)
        loss = train_step(inputs.to(device), targets.to(device)).item()
        scheduler.step()
        times.append(time.perf_counter() - start)
        losses.append(loss)
        if step % 25 == 0 or step == args.steps - 1:
            print(f"step {step:4d}  loss {loss:.4f}", flush=True)

    held_out, samples = accuracy(model, test, device)
    print(f"held-out accuracy {held_out:.4f} on {device}")
    if args.save_curve:
        with open(args.save_curve, "w") as file:
            json.dump({"losses": losses, "accuracy": held_out, "samples": samples, "times": times}, file)


if __name__ == "__main__":
    main()
